"""Codes from weights and back, in CUDA memory: the kernels of libnibble_cuda (nibble/kernels.h), on torch's stream.

The functions are those of _cpu.py; `threads` does not matter here.
"""

from __future__ import annotations

import ctypes
import functools
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import POINTER, byref, c_float, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any

from . import _library
from ._cpu import Parts
from ._memory import CODEBOOKS, NESTED_BLOCKSIZE, NESTED_CODEBOOK, Memory
from .errors import BadInputError, Error, UsageError, error_of

KERNELS_VERSION = 4  # NIBBLE_KERNELS_VERSION


class FourBitWeight(_library.Struct):
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("codebook", c_int),
        ("blocksize", c_uint32),
        ("rows", c_uint64),
        ("columns", c_uint64),
        ("packed", c_void_p),
        ("absmax", c_void_p),
        ("absmax_codes", c_void_p),
        ("nested_absmax", c_void_p),
        ("nested_codebook", c_void_p),
        ("nested_offset", c_void_p),
        ("first", c_uint64),
        ("stride", c_uint64),
    ]


class FourBitOutput(_library.Struct):
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("codebook", c_int),
        ("blocksize", c_uint32),
        ("packed", c_void_p),
        ("absmax", c_void_p),
        ("absmax_codes", c_void_p),
        ("nested_absmax", c_void_p),
        ("nested_offset", c_void_p),
    ]


class Int8Weight(_library.Struct):
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("rows", c_uint64),
        ("columns", c_uint64),
        ("codes", c_void_p),
        ("absmax", c_void_p),
    ]


class Matrix(_library.Struct):
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("dtype", c_int),
        ("rows", c_uint64),
        ("columns", c_uint64),
        ("stride", c_uint64),
        ("data", c_void_p),
    ]


ARGUMENTS = {
    "nibble_quantize_four_bit": [c_void_p, c_int, c_uint64, POINTER(FourBitOutput), c_void_p, c_void_p, c_size_t,
                                 c_void_p],
    "nibble_quantize_four_bit_workspace": [c_uint64, c_uint32, c_int, POINTER(c_size_t)],
    "nibble_dequantize_four_bit": [POINTER(FourBitWeight), c_uint64, POINTER(Matrix), c_void_p],
    "nibble_quantize_int8": [POINTER(Matrix), c_void_p, c_void_p, c_void_p, c_void_p],
    "nibble_dequantize_int8": [POINTER(Int8Weight), c_uint64, POINTER(Matrix), c_void_p],
}  # fmt: skip


@functools.cache
def library() -> ctypes.CDLL:
    """libnibble_cuda.so. NIBBLE_CUDA_LIBRARY names another file. Raises nibble.Error if it cannot be loaded."""
    path = _library.find("libnibble_cuda.so", "NIBBLE_CUDA_LIBRARY")
    if path is None:
        raise Error("the weight is on a CUDA device, and nibble was built without CUDA")
    try:
        loaded = ctypes.CDLL(str(path))
        version = loaded.nibble_kernels_version()
    except (OSError, AttributeError) as error:
        raise Error(f"{path} cannot be loaded: {error}") from error
    if version != KERNELS_VERSION:
        raise Error(f"{path}: has version {version} of the kernels' interface, this package needs {KERNELS_VERSION}")
    loaded.nibble_last_error.restype = ctypes.c_char_p
    loaded.nibble_nested_codebook.restype = POINTER(c_float * NESTED_CODEBOOK)
    for name, arguments in ARGUMENTS.items():
        getattr(loaded, name).argtypes = arguments
    return loaded


def quantize_4bit(weight: Memory, format: str, blocksize: int, parts: Parts, threads: int) -> int:
    size, nested = math.prod(weight.shape), "absmax_codes" in parts
    if nested:
        parts["nested_codebook"].fill(library().nibble_nested_codebook().contents)
    if size == 0:
        if nested:
            parts["nested_offset"].value[...] = 0
        return 0
    pointers = {name: part.pointer for name, part in parts.items() if name != "nested_codebook"}
    output = FourBitOutput(codebook=CODEBOOKS[format], blocksize=blocksize, **pointers)
    with _stream_of(weight) as stream:
        room = c_size_t()
        _check(library().nibble_quantize_four_bit_workspace(size, blocksize, nested, byref(room)))
        workspace, count = weight.empty((room.value,), "uint8"), weight.zeros((1,), "int64")
        _check(library().nibble_quantize_four_bit(
            weight.pointer, weight.dtype_number, size, byref(output), count.pointer, workspace.pointer, room, stream
        ))  # fmt: skip
        if nested and not _decode_to_finite(parts):
            raise BadInputError(
                "the weights are so close to the largest fp32 value that double quantization would turn them into "
                "infinities"
            )
        return int(count.value)


def dequantize_4bit(out: Memory, format: str, blocksize: int, parts: Parts, threads: int) -> None:
    size = math.prod(out.shape)
    blocks = -(-size // blocksize)
    # The kernels take pointers without sizes.
    _check_bytes(parts, {
        "packed": -(-size // 2), "absmax": 4 * blocks, "absmax_codes": blocks,
        "nested_absmax": 4 * -(-blocks // NESTED_BLOCKSIZE), "nested_codebook": 4 * NESTED_CODEBOOK, "nested_offset": 4,
    })  # fmt: skip
    if size == 0:
        return
    pointers = {name: part.pointer for name, part in parts.items()}
    weight = FourBitWeight(codebook=CODEBOOKS[format], blocksize=blocksize, rows=1, columns=size, **pointers)
    with _stream_of(out) as stream:
        _check(library().nibble_dequantize_four_bit(byref(weight), 0, _matrix(out, 1, size), stream))


def quantize_int8(weight: Memory, codes: Memory, absmax: Memory, threads: int) -> int:
    if math.prod(weight.shape) == 0:
        absmax.value[...] = 0
        return 0
    with _stream_of(weight) as stream:
        count, matrix = weight.zeros((1,), "int64"), _matrix(weight, *weight.shape)
        _check(library().nibble_quantize_int8(matrix, codes.pointer, absmax.pointer, count.pointer, stream))
        return int(count.value)


def dequantize_int8(out: Memory, codes: Memory, absmax: Memory, threads: int) -> None:
    rows, columns = codes.shape
    _check_bytes({"absmax": absmax}, {"absmax": 4 * rows})
    if rows * columns == 0:
        return
    weight = Int8Weight(rows=rows, columns=columns, codes=codes.pointer, absmax=absmax.pointer)
    with _stream_of(out) as stream:
        _check(library().nibble_dequantize_int8(byref(weight), 0, _matrix(out, rows, columns), stream))


def _decode_to_finite(parts: Parts) -> bool:
    """nested::decodes_to_finite() of nibble/nested.hpp."""
    torch = sys.modules["torch"]
    codes, scales, codebook, offset = (
        parts[name].value for name in ("absmax_codes", "nested_absmax", "nested_codebook", "nested_offset")
    )
    quarter = torch.finfo(torch.float32).max / 4
    if bool((scales.max() < quarter) & (offset.abs() < quarter)):  # no value is more than 1 in the codebook
        return True
    scale_of_block = scales.repeat_interleave(NESTED_BLOCKSIZE)[: len(codes)]
    return bool((codebook[codes.int()] * scale_of_block + offset).isfinite().all())


@contextmanager
def _stream_of(memory: Memory) -> Iterator[int]:
    """torch's current stream on the device of the memory, which is the current device meanwhile."""
    cuda = sys.modules["torch"].cuda
    with cuda.device(memory.value.device):
        yield cuda.current_stream().cuda_stream


def _matrix(memory: Memory, rows: int, columns: int) -> Any:
    return byref(Matrix(dtype=memory.dtype_number, rows=rows, columns=columns, stride=columns, data=memory.pointer))


def _check_bytes(parts: Parts, expected: dict[str, int]) -> None:
    for name, part in parts.items():
        if part.bytes != expected[name]:
            raise UsageError(f"{name} has {part.bytes} bytes, not {expected[name]}")


def _check(status: int) -> None:
    if status != 0:
        raise error_of(status, library().nibble_last_error().decode(errors="replace"))
