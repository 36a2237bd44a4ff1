"""The JSON text of a 4-bit weight, `weight.quant_state.bitsandbytes__nf4`, as bitsandbytes reads and writes it."""

from __future__ import annotations

import dataclasses
import json
import reprlib
from typing import Any

import torch

from ..operators import BLOCKSIZES, NESTED_BLOCKSIZE, QUANT_TYPES

_KEY = "weight.quant_state.bitsandbytes__"
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_MAX_BYTES = 1 << 16  # more than any quant_state


@dataclasses.dataclass(frozen=True)
class QuantState:
    quant_type: str
    blocksize: int
    dtype: torch.dtype  # of the weight that was quantized
    shape: tuple[int, int]
    nested_offset: float | None = None

    @property
    def key(self) -> str:
        return _KEY + self.quant_type

    def to_tensor(self) -> torch.Tensor:
        fields = {
            "quant_type": self.quant_type,
            "blocksize": self.blocksize,
            "dtype": str(self.dtype).removeprefix("torch."),
            "shape": list(self.shape),
        }
        if self.nested_offset is not None:
            fields |= {
                "nested_blocksize": NESTED_BLOCKSIZE,
                "nested_dtype": "float32",
                "nested_offset": self.nested_offset,
            }
        return torch.tensor(list(json.dumps(fields).encode()), dtype=torch.uint8)


def is_key(name: str) -> bool:
    return name.startswith(_KEY)


def _is_size(size: Any) -> bool:
    return type(size) is int and 0 < size < 1 << 63


def read(tensors: dict[str, torch.Tensor], name: str) -> QuantState:
    """The QuantState among `tensors`. Raises ValueError with one sentence that starts with `name`."""
    keys = [key for key in tensors if is_key(key)]
    if len(keys) != 1:
        raise ValueError(f"{name}: has {len(keys)} tensors quant_state.bitsandbytes__..., not 1")
    fields = _fields(tensors[keys[0]], name)
    _check(fields, name, "quant_type", (keys[0].removeprefix(_KEY),))
    _check(fields, name, "quant_type", QUANT_TYPES)
    _check(fields, name, "blocksize", BLOCKSIZES)
    _check(fields, name, "dtype", tuple(_DTYPES))
    shape = fields.get("shape")
    if not (isinstance(shape, list) and len(shape) == 2 and all(_is_size(size) for size in shape)):
        raise ValueError(f"{name}: its quant_state has the shape {reprlib.repr(shape)}, not two dimensions")
    offset: Any = None
    if "nested_offset" in fields or "nested_blocksize" in fields:
        _check(fields, name, "nested_blocksize", (NESTED_BLOCKSIZE,))
        _check(fields, name, "nested_dtype", ("float32",))
        offset = fields.get("nested_offset")
        if type(offset) not in (int, float) or not abs(offset) <= torch.finfo(torch.float32).max:
            raise ValueError(
                f"{name}: its quant_state has the nested_offset {reprlib.repr(offset)}, not a number that fp32 holds"
            )
        offset = float(offset)
    return QuantState(fields["quant_type"], fields["blocksize"], _DTYPES[fields["dtype"]], (shape[0], shape[1]), offset)


def _fields(tensor: torch.Tensor, name: str) -> dict[str, Any]:
    if tensor.dtype != torch.uint8 or tensor.numel() > _MAX_BYTES:
        raise ValueError(
            f"{name}: its quant_state has {tensor.numel()} values of {tensor.dtype}, not at most {_MAX_BYTES} of "
            "torch.uint8"
        )
    try:
        fields = json.loads(bytes(tensor.flatten().tolist()).decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name}: its quant_state is not what bitsandbytes writes ({error})") from None
    if not isinstance(fields, dict):
        raise ValueError(f"{name}: its quant_state is not what bitsandbytes writes (not a JSON object)")
    return fields


def _check(fields: dict[str, Any], name: str, key: str, allowed: tuple[Any, ...]) -> None:
    """Refuses a field that is not one of the allowed values. 64.0 and True are none, although they equal 64 and 1."""
    if key not in fields:
        raise ValueError(f"{name}: its quant_state has no {key}")
    value = fields[key]
    if type(value) is not type(allowed[0]) or value not in allowed:
        one_of = "one of " if len(allowed) > 1 else ""
        raise ValueError(
            f"{name}: its quant_state has the {key} {reprlib.repr(value)}, not {one_of}{', '.join(map(str, allowed))}"
        )
