"""The quantized weights of a checkpoint, recognised by the names that bitsandbytes gives to their tensors.

A 4-bit weight `W` is `W` (codes), `W.absmax`, `W.quant_map`, `W.quant_state.bitsandbytes__nf4` and, if its absmax are
quantized too, `W.nested_absmax` and `W.nested_quant_map`. An int8 weight `M.weight` has `M.SCB` and `M.weight_format`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ..checkpoint import Checkpoint
from ..errors import BadInputError
from ..nn import Linear4bit, LinearInt8, Weight4bit, WeightInt8, quant_state

QUANT_STATE = ".quant_state.bitsandbytes__"


@dataclass(frozen=True)
class StoredWeight:
    """A quantized weight [rows, columns] and its tensors in a checkpoint, by their names in a state dict of a layer."""

    name: str
    shape: tuple[int, int]
    is_int8: bool
    parts: dict[str, str]
    """{"weight": "model.layers.0.mlp.up_proj.weight", "weight.absmax": ..., or "SCB": ...}."""
    bytes: int

    def layer(
        self, tensors: Checkpoint, bias: torch.nn.Parameter | None, compute_dtype: torch.dtype | None
    ) -> torch.nn.Module:
        """A layer whose tensors are those of the file, without a copy."""
        layer = self._read(LinearInt8 if self.is_int8 else Linear4bit, tensors, compute_dtype)
        layer.bias = bias
        return layer

    def part(self, tensors: Checkpoint, compute_dtype: torch.dtype | None = None) -> torch.nn.Module:
        """The same for a `QuantizedWeight`."""
        return self._read(WeightInt8 if self.is_int8 else Weight4bit, tensors, compute_dtype)

    def _read(self, kind: Any, tensors: Checkpoint, compute_dtype: torch.dtype | None) -> torch.nn.Module:
        state = {part: tensors.torch(name) for part, name in self.parts.items()}
        try:
            return kind.from_state(state, compute_dtype=compute_dtype)
        except ValueError as error:
            raise BadInputError(f"{tensors.info(self.name).file}: tensor '{self.name}': {error}") from None


def find_weights(tensors: Checkpoint) -> dict[str, StoredWeight]:
    """The quantized weights, by the name of their codes. Of the weights' own bytes, nothing is read."""
    four_bit = [name.partition(QUANT_STATE)[0] for name in tensors if QUANT_STATE in name]
    int8 = dict.fromkeys(name.removesuffix(".SCB") + ".weight" for name in tensors if name.endswith(".SCB"))
    parts: dict[str, dict[str, str]] = {name: {} for name in (*four_bit, *int8)}
    for name in tensors:
        for weight, part in _owners(name):
            if weight in parts:
                parts[weight][part] = name
    return {name: _weight(tensors, name, name in int8, parts[name]) for name in parts}


def _owners(name: str) -> Iterator[tuple[str, str]]:
    """The weights that a tensor may belong to, and what it would be of them."""
    yield name, "weight"
    module, _, leaf = name.rpartition(".")
    if leaf in ("SCB", "weight_format"):
        yield module + ".weight", leaf
    elif QUANT_STATE in name:
        weight, _, quant_type = name.partition(QUANT_STATE)
        yield weight, "weight" + QUANT_STATE + quant_type
    else:
        yield module, "weight." + leaf


def _weight(tensors: Checkpoint, name: str, is_int8: bool, parts: dict[str, str]) -> StoredWeight:
    first = tensors.info(next(iter(parts.values())))
    if "weight" not in parts:
        raise BadInputError(f"{first.file}: tensor '{first.name}': belongs to '{name}', which is missing")
    if is_int8:
        shape = tensors.info(name).shape
    else:
        texts = {part: tensors.torch(stored) for part, stored in parts.items() if quant_state.is_key(part)}
        try:
            shape = quant_state.read(texts, f"tensor '{name}'").shape
        except ValueError as error:
            raise BadInputError(f"{first.file}: {error}") from None
    if len(shape) != 2:
        raise BadInputError(
            f"{first.file}: tensor '{name}': is quantized, but has {len(shape)} dimensions instead of 2"
        )
    return StoredWeight(name, shape, is_int8, parts, sum(tensors.info(part).bytes for part in parts.values()))
