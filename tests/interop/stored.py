"""Files as bytes, and the arithmetic of the formats in numpy, as docs/ defines it."""

import json
import pathlib
import struct
from typing import NamedTuple

import numpy as np

F32 = np.float32

NF4 = np.array([-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
                -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
                0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
                0.7229568362236023, 1.0], F32)  # fmt: skip
FP4 = np.array([0, 0.0625, 8, 12, 4, 6, 2, 3, 0, -0.0625, -8, -12, -4, -6, -2, -3], F32) / F32(12)
CODEBOOK = {"nf4": NF4, "fp4": FP4}  # of the 4-bit codecs, as docs/ defines them
# FP4's codes in ascending order of value, as torch sorts them: +0 comes before the second zero, code 8.
ASCENDING = {"nf4": np.arange(16), "fp4": np.array([11, 10, 13, 12, 15, 14, 9, 0, 8, 1, 6, 7, 4, 5, 2, 3])}


class Stored(NamedTuple):
    dtype: str
    shape: tuple
    data: bytes

    def array(self, dtype):
        return np.frombuffer(self.data, dtype)


def header(path):
    """(the header of a safetensors file, where its data begins)"""
    with open(path, "rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        return json.loads(file.read(size)), 8 + size


def read(path):
    """{name: Stored} of a file or of all shards of a directory."""
    path = pathlib.Path(path)
    result = {}
    for file in [path] if path.is_file() else sorted(path.glob("*.safetensors")):
        entries, begin = header(file)
        data = file.read_bytes()[begin:]
        for name, entry in entries.items():
            if name == "__metadata__":
                continue
            assert name not in result, f"{name} is in two shards"
            first, last = entry["data_offsets"]
            result[name] = Stored(entry["dtype"], tuple(entry["shape"]), data[first:last])
    return result


# ---- what nibble must write -----------------------------------------------------------------------------------


def pack(codes, codec):
    """Two codes in a byte, the first in the high half; a last half byte is the code of 0."""
    if codes.size % 2:
        codes = np.append(codes, 7 if codec == "nf4" else 0)
    codes = codes.astype(np.uint8)
    return codes[0::2] << 4 | codes[1::2]


def four_bit_block(weights, codec):
    """(codes, absmax) of one block of finite fp32 weights: one reciprocal, thresholds strictly below."""
    order = ASCENDING[codec]
    values = CODEBOOK[codec][order]
    thresholds = (values[:-1] + values[1:]) / F32(2)
    absmax = np.abs(weights).max()
    scaled = np.clip(weights * (F32(1) / np.maximum(absmax, F32(1e-38))), F32(-1), F32(1))
    return order[np.searchsorted(thresholds, scaled, side="left")], absmax


def nested(absmax, offset, codebook):
    """(codes, nested_absmax): the nearest entry of the codebook, the even one of two that are equally near."""
    codes = np.zeros(absmax.size, np.uint8)
    largest = np.zeros(-(-absmax.size // 256), F32)
    midpoints = F32(0.5) * (codebook[:-1] + codebook[1:])
    for i in range(largest.size):
        d = absmax[256 * i : 256 * (i + 1)] - offset
        largest[i] = np.abs(d).max()
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            v = np.where(d == 0, F32(0), d * (F32(1) / largest[i]))
        below = np.searchsorted(midpoints, v, side="left")
        tie = (below < 255) & (v == midpoints[np.minimum(below, 254)]) & (below % 2 == 1)
        codes[256 * i : 256 * (i + 1)] = below + tie
    return codes, largest


def nested_offset(absmax):
    """The mean, summed one after the other in fp64, as fp32."""
    return F32(np.cumsum(absmax.astype(np.float64))[-1] / absmax.size)


# ---- what a reader makes of it --------------------------------------------------------------------------------


def decode(parts, name):
    """The fp32 matrix behind `name`, whatever it is stored as."""
    entry = parts[name]
    if entry.dtype == "I8":
        scale = parts[name.removesuffix("weight") + "SCB"].array(F32)
        return entry.array(np.int8).reshape(entry.shape).astype(F32) * scale[:, None] * F32(7.874015718698502e-3)
    state = next((k for k in parts if k.startswith(name + ".quant_state.")), None)
    if state is not None:
        return decode_four_bit(parts, name, json.loads(parts[state].data))
    if entry.dtype == "BF16":
        return (entry.array(np.uint16).astype(np.uint32) << 16).view(F32).reshape(entry.shape)
    return entry.array({"F32": F32, "F16": np.float16}[entry.dtype]).astype(F32).reshape(entry.shape)


def decode_four_bit(parts, name, state):
    absmax = parts[name + ".absmax"]
    if "nested_offset" in state:
        codes = absmax.array(np.uint8)
        scale = np.repeat(parts[name + ".nested_absmax"].array(F32), state["nested_blocksize"])[: codes.size]
        absmax = parts[name + ".nested_quant_map"].array(F32)[codes] * scale + F32(state["nested_offset"])
    else:
        absmax = absmax.array(F32)
    packed = parts[name].array(np.uint8)
    size = int(np.prod(state["shape"]))
    codes = np.stack([packed >> 4, packed & 15], 1).reshape(-1)[:size]
    values = parts[name + ".quant_map"].array(F32)[codes] * np.repeat(absmax, state["blocksize"])[:size]
    return values.reshape(state["shape"])
