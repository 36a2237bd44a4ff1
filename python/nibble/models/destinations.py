"""Where in a transformers model a quantized weight of a checkpoint belongs.

transformers renames the tensors of many checkpoints while it loads them, and version 5 also merges the experts of a
layer into one parameter. Both happen to tensors; a quantized weight is several, so the loader follows the names alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    import torch

FUSED_BY_ROWS = ("MergeModulelist", "Concatenate")


@dataclass(frozen=True)
class Destination:
    """A module's weight, or a piece of a parameter that holds the matrices of all experts of a layer."""

    module: str
    leaf: str
    expert: int | None = None
    piece: int = 0
    """Which of the matrices of an expert, whose rows follow each other in the parameter."""


Renaming = Callable[[str, dict[str, int]], Optional[Destination]]


class Unplaceable(ValueError):
    """A quantized weight that no part of the model takes."""


FindDestination = Callable[[str], Optional[Destination]]


def destination_finder(model: torch.nn.Module) -> FindDestination:
    """Where in the model the codes of this name in the checkpoint belong: `model.layers.0.mlp.up_proj.weight`. Raises
    Unplaceable if transformers would do more with them than rename and merge them."""
    rename = _renaming(model)
    parameters = {name: tensor.dim() for name, tensor in model.state_dict().items()}
    return lambda name: rename(name, parameters)


def _place(name: str, rename: Callable[[str], str], parameters: dict[str, int], prefix: str) -> Destination | None:
    candidates: list[tuple[str, int | None]] = [(rename(name), None), (name, None)]
    # Renamings are written for the name of the whole parameter, so the expert's number is taken out first.
    if (cut := _without_expert(name)) is not None:
        whole_name, expert = cut
        candidates += [(rename(whole_name), expert), (whole_name, expert)]
    for candidate, number in candidates:
        for spelling in _spellings(candidate, prefix):
            if parameters.get(spelling) == (2 if number is None else 3):
                module, _, leaf = spelling.rpartition(".")
                return Destination(module, leaf, number)
    return None


def _without_expert(name: str) -> tuple[str, int] | None:
    """The name of the whole parameter and the number of the expert. nibble cuts a parameter of experts into one matrix
    for each expert: `experts.down_proj` becomes `experts.7.down_proj.weight`."""
    match = re.fullmatch(r"(.+)\.(\d+)\.(\w+)\.weight", name)
    return (f"{match[1]}.{match[3]}", int(match[2])) if match else None


def _renaming(model: torch.nn.Module) -> Renaming:
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter, WeightRenaming, apply_renamings
    except ImportError:
        return _renaming_of_version_4(model)
    steps = get_model_conversion_mapping(model)
    renamings = [step for step in steps if isinstance(step, WeightRenaming)]
    converters = [step for step in steps if isinstance(step, WeightConverter)]

    def destination(name: str, parameters: dict[str, int]) -> Destination | None:
        renamed = apply_renamings(name, renamings)
        for converter in converters:
            target, pattern = converter.rename_source_key(renamed)
            if pattern is None:
                continue
            target = next((t for t in _spellings(target, model.base_model_prefix) if t in parameters), None)
            if target is None:
                continue
            operations = [type(operation).__name__ for operation in converter.operations]
            expert = re.search(re.escape(pattern).replace(r"\*", r"(\d+)"), renamed)
            if expert is None or not expert.groups() or any(o not in FUSED_BY_ROWS for o in operations):
                raise Unplaceable(f"tensor '{name}': transformers makes '{target}' of it by {', '.join(operations)}, "
                                  "which is not possible with quantized weights")  # fmt: skip
            module, _, leaf = target.rpartition(".")
            return Destination(module, leaf, int(expert[1]), converter.source_patterns.index(pattern))
        return _place(name, lambda key: apply_renamings(key, renamings), parameters, model.base_model_prefix)

    return destination


def _renaming_of_version_4(model: torch.nn.Module) -> Renaming:
    patterns = getattr(model, "_checkpoint_conversion_mapping", None) or {}

    def rename(name: str) -> str:
        for pattern, replacement in patterns.items():
            name, count = re.subn(pattern, replacement, name)
            if count > 0:
                break
        return name

    return lambda name, parameters: _place(name, rename, parameters, model.base_model_prefix)


def _spellings(name: str, prefix: str) -> list[str]:
    """A checkpoint of a bare model loads into a model with a head, and the other way round."""
    return [name] if not prefix else [name, f"{prefix}.{name}", name.removeprefix(prefix + ".")]
