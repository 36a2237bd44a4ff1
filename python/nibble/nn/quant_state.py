"""The JSON text of a 4-bit weight, `weight.quant_state.bitsandbytes__nf4`, as bitsandbytes reads and writes it."""

from __future__ import annotations

import dataclasses
import json

import torch

from ..operators import BLOCKSIZES, NESTED_BLOCKSIZE, QUANT_TYPES

_KEY = "weight.quant_state.bitsandbytes__"
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


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


def read(tensors: dict[str, torch.Tensor], name: str) -> QuantState:
    """The QuantState among `tensors`. Raises ValueError with one sentence that starts with `name`."""
    keys = [key for key in tensors if is_key(key)]
    if len(keys) != 1:
        raise ValueError(f"{name}: has {len(keys)} tensors quant_state.bitsandbytes__..., not 1")
    try:
        fields = json.loads(bytes(tensors[keys[0]].tolist()))
        quant_type, blocksize = fields["quant_type"], fields["blocksize"]
        dtype, shape = fields["dtype"], tuple(fields["shape"])
        offset = fields.get("nested_offset")
        nested = (fields.get("nested_blocksize"), fields.get("nested_dtype"))
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{name}: its quant_state is not what bitsandbytes writes ({error})") from None
    facts = (
        ("quant_type", quant_type, QUANT_TYPES),
        ("blocksize", blocksize, BLOCKSIZES),
        ("dtype", dtype, tuple(_DTYPES)),
    )
    for key, value, allowed in facts:
        if value not in allowed:
            raise ValueError(
                f"{name}: its quant_state has the {key} {value!r}, not one of {', '.join(map(str, allowed))}"
            )
    if len(shape) != 2 or not all(isinstance(size, int) and size > 0 for size in shape):
        raise ValueError(f"{name}: its quant_state has the shape {list(shape)}, not two dimensions")
    if offset is not None and nested != (NESTED_BLOCKSIZE, "float32"):
        raise ValueError(f"{name}: has nested blocks of {nested[0]} {nested[1]} values, not of 256 float32 values")
    return QuantState(quant_type, blocksize, _DTYPES[dtype], shape, None if offset is None else float(offset))
