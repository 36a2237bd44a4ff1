"""Adapters on models with quantized weights: whether one is for this model, and that none is merged into codes.

Merging in memory peft would do wrongly: it adds floats to codes. What it does then depends on the layer and on its options: it fails inside torch, or the update is cast to int8 and lost.
peft's own code for bitsandbytes' layers is not chosen for nibble's.
"""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, Any

from ..checkpoint import open_checkpoint
from ..errors import BadInputError

if TYPE_CHECKING:
    import torch

HELPER = "check_adapters_to_merge"  # with it, the merge() of every kind of adapter begins


def register() -> None:
    """Makes peft refuse such merges. To be called once."""
    from peft.tuners import tuners_utils

    original = getattr(tuners_utils, HELPER)

    def checked(module: torch.nn.Module, adapter_names: list[str] | None = None) -> Any:
        _check_mergeable(module.get_base_layer())
        return original(module, adapter_names)

    for name, module in list(sys.modules.items()):
        if name.startswith("peft.") and getattr(module, HELPER, None) is original:
            setattr(module, HELPER, checked)


def _check_mergeable(layer: torch.nn.Module) -> None:
    ours = sys.modules.get("nibble.nn")
    if ours is None:
        return
    weight = getattr(layer, "weight", None)
    if isinstance(layer, ours.FrozenLinear):
        shape = [layer.out_features, layer.in_features]
    elif isinstance(weight, ours.QuantizedWeight):
        shape = list(weight.shape)
    else:
        return
    raise NotImplementedError(
        f"{type(layer).__name__} {shape}: its weight is quantized, and an adapter cannot be merged into it"
    )


def put_on(model: Any, directory: str) -> Any:
    """peft's model over `model`, with the adapter of a directory. Raises BadInputError if that is for another model."""
    import peft

    file = os.path.join(directory, "adapter_model.safetensors")
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        if not os.path.isfile(os.path.join(directory, name)):
            raise BadInputError(f"{directory}: has no {name}, so it is not an adapter that nibble can load")
    _check_fits(model, file)
    return peft.PeftModel.from_pretrained(model, directory)


def _check_fits(model: Any, file: str) -> None:
    """peft lists all tensors of other shapes, and says nothing of those for modules that the model lacks."""
    modules = dict(model.named_modules())
    with open_checkpoint(file) as tensors:
        for name in tensors:
            match = re.fullmatch(r"base_model\.model\.(.+)\.lora_([AB])\.weight", name)
            if match is None:
                continue
            module, is_a = match[1].removesuffix(".base_layer"), match[2] == "A"
            if module not in modules:
                raise BadInputError(
                    f"{file}: tensor '{name}': {type(model).__name__} has no '{module}', so the adapter is for another base"
                )
            size = getattr(modules[module], "in_features" if is_a else "out_features", None)
            shape = tensors.info(name).shape
            if size is not None and shape[1 if is_a else 0] != size:
                raise BadInputError(
                    f"{file}: tensor '{name}': is {list(shape)}, and '{module}' of the base has {size} "
                    f"{'columns' if is_a else 'rows'}, so the adapter is for another base"
                )
