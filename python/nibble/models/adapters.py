"""Adapters on models with quantized weights: whether one is for this model, and that none is merged into codes.

peft would merge them wrongly in memory, because it adds floats to codes: depending on the layer and its options, it
fails inside torch, or the update is cast to int8 and lost. peft's own code for bitsandbytes' layers is not chosen for
nibble's.
"""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, Any

from ..checkpoint import Checkpoint, TensorInfo, open_checkpoint
from ..errors import BadInputError

if TYPE_CHECKING:
    import torch

HELPER = "check_adapters_to_merge"  # with it, the merge() of every kind of adapter begins
ADAPTER = "default"  # what peft calls an adapter that has no other name


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
    """peft's model over `model`, with the LoRA of a directory. Raises BadInputError if that is damaged or for another
    model."""
    config_file, file = (os.path.join(directory, name) for name in ("adapter_config.json", "adapter_model.safetensors"))
    for path in (config_file, file):
        if not os.path.isfile(path):
            name = os.path.basename(path)
            raise BadInputError(f"{directory}: has no {name}, so it is not an adapter that nibble can load")
    config = _read_config(config_file)
    with open_checkpoint(file) as tensors:
        modules = dict(model.named_modules())
        for name in tensors:
            _check_finite(tensors, name)
            _check_module(model, modules, config, tensors.info(name))
        adapted = _with_places(model, config, config_file)
        _check_complete(adapted, tensors, file)
    adapted.load_adapter(directory, ADAPTER)
    return adapted


def _read_config(file: str) -> Any:
    import peft

    from ..model_directory import BadInput, one_line, read_json

    try:
        stored = read_json(file)
    except BadInput as error:
        raise BadInputError(str(error)) from None
    if not isinstance(stored, dict):
        raise BadInputError(f"{file}: is not a JSON object")
    kind = stored.get("peft_type")
    if kind != "LORA":
        fact = "has no peft_type" if kind is None else f"peft_type is {kind!r}"
        raise BadInputError(f"{file}: {fact}, nibble.load() takes LORA")
    if not isinstance(stored.get("target_parameters") or [], list):
        raise BadInputError(f"{file}: 'target_parameters' is not a list of names")
    try:
        return peft.PeftConfig.from_pretrained(os.path.dirname(file))
    except Exception as error:  # of a field of a wrong type, anything
        raise BadInputError(f"{file}: {one_line(error)}") from error


def _check_finite(tensors: Checkpoint, name: str) -> None:
    values = tensors.torch(name).flatten()
    finite = values.isfinite()
    if not finite.all():
        index = int(finite.logical_not().nonzero()[0])
        file = tensors.info(name).file
        raise BadInputError(f"{file}: tensor '{name}': element {index} is {values[index].item()}")


def _check_module(model: Any, modules: dict[str, torch.nn.Module], config: Any, tensor: TensorInfo) -> None:
    """Refuses a factor for a module that the base lacks, or of which peft cannot adapt the weight."""
    match = re.fullmatch(r"base_model\.model\.(.+?)(\.base_layer)*\.lora_([AB])\.weight", tensor.name)
    if match is None:
        return
    what = f"{tensor.file}: tensor '{tensor.name}'"
    name, is_a = match[1], match[3] == "A"
    if name not in modules:
        raise BadInputError(f"{what}: {type(model).__name__} has no '{name}', so the adapter is for another base")
    targets = tuple(f".{target}" for target in getattr(config, "target_parameters", None) or ())
    if any(f".{parameter}".endswith(targets) for parameter in _quantized_parameters(name, modules[name])):
        raise BadInputError(
            f"{what}: is for a quantized parameter of '{name}', which target_parameters names and peft cannot adapt; "
            "nibble merge can merge the adapter"
        )
    size = getattr(modules[name], "in_features" if is_a else "out_features", None)
    if size is not None and len(tensor.shape) == 2 and tensor.shape[1 if is_a else 0] != size:
        raise BadInputError(
            f"{what}: is {list(tensor.shape)}, and '{name}' of the base has {size} {'columns' if is_a else 'rows'}, "
            "so the adapter is for another base"
        )


def _quantized_parameters(name: str, module: torch.nn.Module) -> list[str]:
    """The names of what is quantized where `module`, which has this name, would have parameters."""
    from ..nn import ExpertWeights, FrozenLinear, QuantizedWeight

    if isinstance(module, FrozenLinear):
        return [f"{name}.weight"]
    kinds = (ExpertWeights, QuantizedWeight)
    return [f"{name}.{leaf}" for leaf, child in module.named_children() if isinstance(child, kinds)]


def _with_places(model: Any, config: Any, config_file: str) -> Any:
    """peft's model with places for the tensors of the adapter, as PeftModel.from_pretrained() makes it."""
    import peft

    from ..model_directory import one_line

    kind = peft.MODEL_TYPE_TO_PEFT_MODEL_MAPPING.get(config.task_type, peft.PeftModel)
    try:
        return kind(model, config, ADAPTER)
    except Exception as error:  # of a field of a wrong type, anything
        raise BadInputError(f"{config_file}: {one_line(error)}") from error


def _check_complete(adapted: Any, tensors: Checkpoint, file: str) -> None:
    """Every tensor of the file needs a place, and every place of the adapter a tensor: peft passes over the rest."""
    import peft

    from ..nn import ExpertWeights, QuantizedWeight

    needed = peft.get_peft_model_state_dict(adapted, adapter_name=ADAPTER, save_embedding_layers=False)
    places = adapted.state_dict() | needed  # the adapter may have embeddings of its own
    taken = {name for name, module in adapted.named_modules() if isinstance(module, (ExpertWeights, QuantizedWeight))}
    for name in tensors:
        what, stored, place = f"{file}: tensor '{name}'", tensors.torch(name), places.get(name)
        is_of_codes = place is not None and stored.is_floating_point() and not place.is_floating_point()
        if is_of_codes or name in taken:
            raise BadInputError(f"{what}: replaces a weight that is quantized; nibble merge can merge the adapter")
        if place is None:
            raise BadInputError(f"{what}: has no place in the model with this adapter_config.json")
        if stored.shape != place.shape:
            shape, wanted = list(stored.shape), list(place.shape)
            raise BadInputError(f"{what}: is {shape}, base and adapter_config.json make it {wanted}")
    for name in needed:
        if name not in tensors:
            raise BadInputError(f"{file}: tensor '{name}': is missing, base and adapter_config.json ask for it")
