"""Codes from weights and back, for numpy arrays and torch tensors: the bytes that `nibble convert` writes.

    quantized = nibble.quantize_nf4(weight)           # numpy array or torch tensor, fp32, fp16 or bf16
    weight = nibble.dequantize_nf4(quantized)         # of the same kind

The arrays of a result are those that bitsandbytes has: `packed` is its weight, `codes` and `absmax` of Int8 are its CB
and SCB. libnibble works on all threads and on the arrays themselves. Tensors on a CUDA device stay there: the kernels of
libnibble_cuda work on torch's current stream. numpy has bf16 only by ml_dtypes.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Union

import numpy as np

from . import _cpu, _cuda
from ._memory import NESTED_BLOCKSIZE, NESTED_CODEBOOK, Memory, memory_of
from .errors import BadInputError, UsageError

if TYPE_CHECKING:
    import torch

Array = Union[np.ndarray, "torch.Tensor"]
Format = Literal["nf4", "fp4"]
FloatType = Literal["float32", "float16", "bfloat16"]
Nonfinite = Literal["error", "quantize"]


@dataclass
class FourBit:
    """A weight in blocks of 4-bit codes.

    weight = codebook[code] * absmax[block]. With nested absmax (double quantization), absmax is None and
    absmax = nested_codebook[absmax_codes[block]] * nested_absmax[block / 256] + nested_offset.
    """

    format: Format
    blocksize: int
    shape: tuple[int, ...]
    dtype: FloatType
    """The type that the weight had."""
    packed: Array
    """uint8; two codes in a byte, the first in the upper half."""
    absmax: Array | None = None
    absmax_codes: Array | None = None
    nested_absmax: Array | None = None
    nested_codebook: Array | None = None
    nested_offset: Array | None = None

    @property
    def nested(self) -> bool:
        return self.absmax_codes is not None


@dataclass
class Int8:
    """A matrix in LLM.int8() form: weight = code * absmax[row] / 127."""

    codes: Array
    absmax: Array
    dtype: FloatType
    """The type that the weight had."""


def quantize_nf4(
    weight: Array, *, blocksize: int = 64, nested: bool = False, nonfinite: Nonfinite = "error", threads: int = 0
) -> FourBit:
    """Quantizes to NF4, with one absmax per `blocksize` weights (32, 64, ..., 4096), which `nested` quantizes too.

    A NaN or infinity is an error, unless `nonfinite` is "quantize": then NaN counts as 0, and an infinity as the largest
    finite magnitude of its block. `threads`: 0 stands for all processors; it does not matter to a CUDA device.
    """
    return _quantize("nf4", weight, blocksize, nested, nonfinite, threads)


def quantize_fp4(
    weight: Array, *, blocksize: int = 64, nested: bool = False, nonfinite: Nonfinite = "error", threads: int = 0
) -> FourBit:
    """Quantizes to bitsandbytes' FP4; otherwise as quantize_nf4()."""
    return _quantize("fp4", weight, blocksize, nested, nonfinite, threads)


def dequantize_nf4(weight: FourBit, *, dtype: FloatType | None = None, threads: int = 0) -> Array:
    """The weight in `dtype` (by default the type that it had), rounded once from fp32."""
    return _dequantize("nf4", weight, dtype, threads)


def dequantize_fp4(weight: FourBit, *, dtype: FloatType | None = None, threads: int = 0) -> Array:
    """As dequantize_nf4()."""
    return _dequantize("fp4", weight, dtype, threads)


def quantize_int8(weight: Array, *, nonfinite: Nonfinite = "error", threads: int = 0) -> Int8:
    """Quantizes a matrix to LLM.int8(), with one absmax per row. fp16 has to hold its weights; otherwise as
    quantize_nf4()."""
    refuses = _refuses(nonfinite)
    threads = _check_threads(threads)
    memory = memory_of(weight, "weight")
    if len(memory.shape) != 2:
        raise UsageError(f"weight has {len(memory.shape)} dimensions, int8 needs 2: [rows, columns]")
    codes, absmax = memory.empty(memory.shape, "int8"), memory.empty(memory.shape[:1], "float32")
    bad = _codecs_of(memory).quantize_int8(memory, codes, absmax, threads)
    if bad and refuses:
        raise BadInputError(f"weight: {bad} of {memory.shape[0]} rows have a NaN, an infinity, or more than fp16 holds")
    return Int8(codes.value, absmax.value, memory.dtype)


def dequantize_int8(weight: Int8, *, dtype: FloatType | None = None, threads: int = 0) -> Array:
    """As dequantize_nf4(): two roundings in fp32, and one to `dtype`."""
    _check_class(weight, Int8)
    threads = _check_threads(threads)
    codes = memory_of(weight.codes, "codes", "int8")
    absmax = memory_of(weight.absmax, "absmax", "float32", like=codes)
    if len(codes.shape) != 2:
        raise UsageError(f"codes has {len(codes.shape)} dimensions, int8 needs 2: [rows, columns]")
    out = codes.empty(codes.shape, _float_type(weight.dtype if dtype is None else dtype))
    _codecs_of(codes).dequantize_int8(out, codes, absmax, threads)
    decoded: Array = out.value
    return decoded


def _integer(value: Any) -> int | None:
    """An integer, also one of numpy, as ctypes takes it; None for anything else."""
    try:
        return operator.index(value)
    except TypeError:
        return None


def _check_threads(threads: Any) -> int:
    number = _integer(threads)
    if number is None or not 0 <= number < 2**32:
        raise UsageError(f"threads is {threads}, not a number from 0 to {2**32 - 1}")
    return number


def _check_blocksize(blocksize: Any) -> int:
    number = _integer(blocksize)
    if number is None or not 32 <= number <= 4096 or number & (number - 1):
        raise UsageError(f"blocksize is {blocksize}, not one of 32, 64, ..., 4096")
    return number


def _size_of(shape: Any) -> int:
    sizes = [_integer(size) for size in shape] if isinstance(shape, tuple) else [None]
    if any(size is None or size < 0 for size in sizes):
        raise UsageError(f"shape is {shape}, not a tuple of sizes")
    size = math.prod(size for size in sizes if size is not None)
    if size >= 2**64:
        raise UsageError(f"shape is {shape}, which exceeds 64 bits")
    return size


def _check_class(weight: Any, wanted: type) -> None:
    if not isinstance(weight, wanted):
        raise UsageError(f"the weight is of type {type(weight).__name__}, not a nibble.{wanted.__name__}")


def _refuses(nonfinite: str) -> bool:
    if nonfinite not in ("error", "quantize"):
        raise UsageError(f"nonfinite is '{nonfinite}', neither 'error' nor 'quantize'")
    return nonfinite == "error"


def _float_type(dtype: Any) -> str:
    name = str(dtype).removeprefix("torch.")
    if name not in ("float32", "float16", "bfloat16"):
        raise UsageError(f"dtype is {name}, not float32, float16 or bfloat16")
    return name


def _codecs_of(memory: Memory) -> Any:
    """What codes and decodes where the array is."""
    return _cpu if memory.device == "cpu" else _cuda


def _quantize(format: Format, weight: Array, blocksize: int, nested: bool, nonfinite: str, threads: int) -> FourBit:
    refuses = _refuses(nonfinite)
    blocksize = _check_blocksize(blocksize)
    threads = _check_threads(threads)
    memory = memory_of(weight, "weight")
    size = math.prod(memory.shape)
    blocks = -(-size // blocksize)
    parts = {"packed": memory.empty((-(-size // 2), 1), "uint8")}
    if nested:
        parts["absmax_codes"] = memory.empty((blocks,), "uint8")
        parts["nested_absmax"] = memory.empty((-(-blocks // NESTED_BLOCKSIZE),), "float32")
        parts["nested_codebook"] = memory.empty((NESTED_CODEBOOK,), "float32")
        parts["nested_offset"] = memory.empty((1,), "float32")
    else:
        parts["absmax"] = memory.empty((blocks,), "float32")
    bad = _codecs_of(memory).quantize_4bit(memory, format, blocksize, parts, threads)
    if bad and refuses:
        raise BadInputError(f"weight: {bad} of {blocks} blocks have a NaN or an infinity")
    values = {name: part.value for name, part in parts.items()}
    return FourBit(format=format, blocksize=blocksize, shape=tuple(memory.shape), dtype=memory.dtype, **values)


def _dequantize(format: str, weight: FourBit, dtype: FloatType | None, threads: int) -> Array:
    _check_class(weight, FourBit)
    blocksize = _check_blocksize(weight.blocksize)
    threads = _check_threads(threads)
    size = _size_of(weight.shape)
    if weight.format != format:
        raise UsageError(f"the weight is {weight.format}, not {format}")
    packed = memory_of(weight.packed, "packed", "uint8")
    types = {"absmax_codes": "uint8"}
    names = ["absmax_codes", "nested_absmax", "nested_codebook", "nested_offset"] if weight.nested else ["absmax"]
    parts = {"packed": packed}
    for name in names:
        parts[name] = memory_of(getattr(weight, name), name, types.get(name, "float32"), like=packed)
    target = _float_type(weight.dtype if dtype is None else dtype)
    if packed.bytes != -(-size // 2):  # before memory for the weight is taken
        raise UsageError(f"packed has {packed.bytes} bytes, not {-(-size // 2)}")
    out = packed.empty(weight.shape, target)
    _codecs_of(packed).dequantize_4bit(out, format, blocksize, parts, threads)
    decoded: Array = out.value
    return decoded
