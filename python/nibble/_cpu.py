"""Codes from weights and back, in ordinary memory: the functions of nibble/c_api.h. _cuda.py has the same for CUDA."""

from __future__ import annotations

import math
from ctypes import byref, c_uint64
from typing import Any

from . import _library
from ._memory import CODEBOOKS, Memory

Parts = dict[str, Memory]


def quantize_4bit(weight: Memory, format: str, blocksize: int, parts: Parts, threads: int) -> int:
    """Writes the parts of FourBit, and returns how many blocks have a NaN or an infinity."""
    count = c_uint64()
    arrays = _four_bit(format, blocksize, math.prod(weight.shape), parts)
    function = _library.library().nibble_cpu_quantize_4bit
    _library.check(function(weight.array(), weight.dtype_number, arrays, threads, byref(count)))
    return count.value


def dequantize_4bit(out: Memory, format: str, blocksize: int, parts: Parts, threads: int) -> None:
    arrays = _four_bit(format, blocksize, math.prod(out.shape), parts)
    function = _library.library().nibble_cpu_dequantize_4bit
    _library.check(function(arrays, out.array(), out.dtype_number, threads))


def quantize_int8(weight: Memory, codes: Memory, absmax: Memory, threads: int) -> int:
    """Writes both, and returns how many rows fp16 cannot hold."""
    count = c_uint64()
    function = _library.library().nibble_cpu_quantize_int8
    arrays = _int8(codes, absmax)
    _library.check(function(weight.array(), weight.dtype_number, arrays, threads, byref(count)))
    return count.value


def dequantize_int8(out: Memory, codes: Memory, absmax: Memory, threads: int) -> None:
    function = _library.library().nibble_cpu_dequantize_int8
    _library.check(function(_int8(codes, absmax), out.array(), out.dtype_number, threads))


def _four_bit(format: str, blocksize: int, size: int, parts: Parts) -> Any:
    arrays = {name: part.array() for name, part in parts.items()}
    return byref(_library.FourBitArrays(codebook=CODEBOOKS[format], blocksize=blocksize, elements=size, **arrays))


def _int8(codes: Memory, absmax: Memory) -> Any:
    rows, columns = codes.shape
    return byref(_library.Int8Arrays(rows=rows, columns=columns, codes=codes.array(), absmax=absmax.array()))
