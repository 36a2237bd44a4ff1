#!/usr/bin/env python3
"""Loads libnibble_cuda as any language would, without torch and without a GPU: tests/package/kernels.py LIBRARY"""

import ctypes
import pathlib
import subprocess
import sys

library = pathlib.Path(sys.argv[1])
assert library.stat().st_size < 64e6, f"{library} has {library.stat().st_size} bytes, may have 64 MB"
names = subprocess.run(["nm", "-D", "--defined-only", "--format=posix", library], check=True, stdout=subprocess.PIPE, text=True)
others = [line for line in names.stdout.splitlines() if not line.startswith("nibble_")]
assert not others, f"{library} exports more than nibble_*: {others[:3]}"
nibble = ctypes.CDLL(library)
nibble.nibble_last_error.restype = ctypes.c_char_p
nibble.nibble_quantize_four_bit_workspace.restype = ctypes.c_size_t
nibble.nibble_quantize_four_bit_workspace.argtypes = [ctypes.c_uint64, ctypes.c_uint32, ctypes.c_int]
nibble.nibble_nested_codebook.restype = ctypes.POINTER(ctypes.c_float * 256)

USAGE = 2
assert nibble.nibble_quantize_four_bit_workspace(1 << 32, 64, 0) == 0
assert nibble.nibble_quantize_four_bit_workspace(1 << 32, 64, 1) >= 4 << 26
assert nibble.nibble_nested_codebook().contents[127] == 0
assert nibble.nibble_dequantize_four_bit(None, ctypes.c_uint64(0), None, None) == USAGE
text = nibble.nibble_last_error().decode()
assert text and "\n" not in text, text
print(f"{library.name}: {library.stat().st_size / 1e6:.1f} MB, loads alone, refuses: {text}")
