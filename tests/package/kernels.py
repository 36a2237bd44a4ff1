#!/usr/bin/env python3
"""Loads libnibble_cuda as any language would, without torch and without a GPU: tests/package/kernels.py LIBRARY"""

import ctypes
import pathlib
import re
import subprocess
import sys
from ctypes import POINTER, Structure, byref, c_char, c_float, c_int, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p

INTERNAL, USAGE, F16 = 1, 2, 1


class FourBit(Structure):
    _fields_ = [("struct_bytes", c_size_t), ("codebook", c_int), ("blocksize", c_uint32), ("rows", c_uint64),
                ("columns", c_uint64), ("packed", c_void_p), ("absmax", c_void_p), ("absmax_codes", c_void_p),
                ("nested_absmax", c_void_p), ("nested_codebook", c_void_p), ("nested_offset", c_void_p),
                ("first", c_uint64), ("stride", c_uint64)]  # fmt: skip


class FourBitOutput(Structure):
    _fields_ = [("struct_bytes", c_size_t), ("codebook", c_int), ("blocksize", c_uint32), ("packed", c_void_p),
                ("absmax", c_void_p), ("absmax_codes", c_void_p), ("nested_absmax", c_void_p),
                ("nested_offset", c_void_p)]  # fmt: skip


class Int8(Structure):
    _fields_ = [("struct_bytes", c_size_t), ("rows", c_uint64), ("columns", c_uint64), ("codes", c_void_p), ("absmax", c_void_p)]


class Matrix(Structure):
    _fields_ = [("struct_bytes", c_size_t), ("dtype", c_int), ("rows", c_uint64), ("columns", c_uint64), ("stride", c_uint64), ("data", c_void_p)]


class Product(Structure):
    _fields_ = [("struct_bytes", c_size_t), ("weight", POINTER(FourBit)), ("bias", c_void_p), ("y", POINTER(Matrix))]


class Int8Product(Structure):
    _fields_ = [("struct_bytes", c_size_t), ("weight", POINTER(Int8)), ("bias", c_void_p), ("y", POINTER(Matrix))]


class Matmul(Structure):
    _fields_ = [("struct_bytes", c_size_t), ("x", POINTER(Matrix)), ("products", POINTER(Product)),
                ("product_count", c_uint32), ("experts", c_uint32), ("ends", c_void_p), ("compute_dtype", c_int),
                ("accumulate", c_int), ("weights_are_ready", c_int), ("counters", c_void_p)]  # fmt: skip


library = pathlib.Path(sys.argv[1])
assert library.stat().st_size < 64e6, f"{library} has {library.stat().st_size} bytes, may have 64 MB"
names = subprocess.run(["nm", "-D", "--defined-only", "--format=posix", library], check=True, stdout=subprocess.PIPE, text=True)
others = [line for line in names.stdout.splitlines() if not line.startswith("nibble_")]
assert not others, f"{library} exports more than nibble_*: {others[:3]}"
nibble = ctypes.CDLL(library)
nibble.nibble_last_error.restype = ctypes.c_char_p
nibble.nibble_quantize_four_bit_workspace.argtypes = [c_uint64, c_uint32, c_int, POINTER(c_size_t)]
nibble.nibble_nested_codebook.restype = POINTER(c_float * 256)
header = (pathlib.Path(__file__).parents[2] / "kernels/host/device_interface.h").read_text(encoding="utf-8")
for name in re.findall(r"NIBBLE_API [\w ]+?(nibble_\w+)\(", header):
    assert hasattr(nibble, name), f"{library} lacks {name} of kernels/host/device_interface.h"
public = (pathlib.Path(__file__).parents[2] / "include/nibble/kernels.h").read_text(encoding="utf-8")
assert nibble.nibble_kernels_version() == int(re.search(r"NIBBLE_KERNELS_VERSION (\d+)", public)[1])
assert nibble.nibble_device_interface_version() == int(re.search(r"NIBBLE_DEVICE_INTERFACE_VERSION (\d+)", header)[1])


def refusal(status, expected):
    """What nibble_last_error() says: one line."""
    assert status == expected, f"{status}, not {expected}"
    text = nibble.nibble_last_error().decode()
    assert text and "\n" not in text, text
    return text


room = c_size_t()
assert nibble.nibble_quantize_four_bit_workspace(1 << 32, 64, 0, byref(room)) == 0 and room.value == 0
assert nibble.nibble_quantize_four_bit_workspace(1 << 32, 64, 1, byref(room)) == 0 and room.value >= 4 << 26
text = refusal(nibble.nibble_quantize_four_bit_workspace(1 << 32, 48, 1, byref(room)), USAGE)
assert "48" in text, text
assert nibble.nibble_nested_codebook().contents[127] == 0
text = refusal(nibble.nibble_dequantize_four_bit(None, c_uint64(0), None, None), USAGE)
print(f"{library.name}: {library.stat().st_size / 1e6:.1f} MB, loads alone, refuses: {text}")


def devices():
    """How many GPUs the driver has; none without a driver."""
    count = c_int(0)
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    return count.value if driver.cuInit(0) == 0 and driver.cuDeviceGetCount(byref(count)) == 0 else 0


if devices() > 0:
    print("skipped: there is a GPU, so no call fails for want of one")
    sys.exit()

# Arguments without a fault, of a weight of 64 x 64: the pointers are never followed.
memory = (c_uint8 * (1 << 16))()
at = ctypes.addressof(memory) + 255 & ~255
weight = FourBit(struct_bytes=ctypes.sizeof(FourBit), codebook=0, blocksize=64, rows=64, columns=64, packed=at, absmax=at)
output = FourBitOutput(struct_bytes=ctypes.sizeof(FourBitOutput), codebook=0, blocksize=64, packed=at, absmax=at)
nested = FourBitOutput(struct_bytes=ctypes.sizeof(FourBitOutput), codebook=0, blocksize=64, packed=at, absmax_codes=at,
                       nested_absmax=at, nested_offset=at)  # fmt: skip
int8 = Int8(struct_bytes=ctypes.sizeof(Int8), rows=64, columns=64, codes=at, absmax=at)
matrix = Matrix(struct_bytes=ctypes.sizeof(Matrix), dtype=F16, rows=64, columns=64, stride=64, data=at)
here, size, room = c_void_p(at), c_uint64(64 * 64), c_size_t(1 << 15)
product = Product(struct_bytes=ctypes.sizeof(Product), weight=ctypes.pointer(weight), y=ctypes.pointer(matrix))
matmul = Matmul(struct_bytes=ctypes.sizeof(Matmul), x=ctypes.pointer(matrix), products=ctypes.pointer(product),
                product_count=1)  # fmt: skip
matmul_room = c_size_t(0)
assert nibble.nibble_matmul_four_bit_workspace(byref(matmul), byref(matmul_room)) == 0
int8_product = Int8Product(struct_bytes=ctypes.sizeof(Int8Product), weight=ctypes.pointer(int8), y=ctypes.pointer(matrix))
int8_matmul = Matmul(struct_bytes=ctypes.sizeof(Matmul), x=ctypes.pointer(matrix))
int8_room = c_size_t(0)
assert nibble.nibble_matmul_int8_workspace(byref(int8_matmul), byref(int8_product), byref(int8_room)) == 0
page = (c_uint8 * (1 << 13))()
text, number, queue = (c_char * 64)(), c_int(0), c_void_p()
calls = {
    "nibble_dequantize_four_bit": [byref(weight), c_uint64(0), byref(matrix), None],
    "nibble_dequantize_int8": [byref(int8), c_uint64(0), byref(matrix), None],
    "nibble_quantize_four_bit": [here, F16, size, byref(output), None, None, c_size_t(0), None],
    "nibble_quantize_four_bit, nested": [here, F16, size, byref(nested), None, here, room, None],
    "nibble_quantize_int8": [byref(matrix), here, here, None, None],
    "nibble_find_device": [byref(number), text, c_size_t(64)],
    "nibble_pin": [c_int(0), c_void_p(ctypes.addressof(page) + 4095 & ~4095), c_size_t(4096)],
    "nibble_queue_create": [c_int(0), byref(queue)],
    "nibble_matmul_four_bit": [byref(matmul), here, matmul_room, None],
    "nibble_matmul_int8": [byref(int8_matmul), byref(int8_product), here, int8_room, None],
}
for name, arguments in calls.items():
    text = refusal(getattr(nibble, name.split(",")[0])(*arguments), INTERNAL)
    # "cudaGetDevice: CUDA driver version is insufficient for CUDA runtime version", "...: no CUDA-capable device ..."
    assert ": " in text and "CUDA" in text, text
    print(f"without a GPU, {name}: {text}")
