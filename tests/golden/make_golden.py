#!/usr/bin/env python3
"""Writes codecs.safetensors beside this file: what bitsandbytes and torch make of small tensors, on the CPU.

    pip install torch==2.15.0 bitsandbytes==0.50.2 compressed-tensors==0.20.0 safetensors numpy
    python tests/golden/make_golden.py

A case is a prefix: `<prefix>.input`, and beside it what the reference tool returns, under the names it saves. Only
whole blocks: in a short last block bitsandbytes divides where nibble multiplies (and where CUDA does).
"""
import json
import pathlib
import warnings

import numpy as np
import torch

warnings.simplefilter("ignore")
import bitsandbytes
import bitsandbytes.functional as bnb
import compressed_tensors
from safetensors.torch import save_file

random = np.random.default_rng(1)
out = {}


def normal(shape, dtype, scale=0.02):
    return torch.from_numpy((random.standard_normal(shape) * scale).astype(np.float32)).to(dtype)


def edges(kind):
    """Blocks of 64 with every midpoint, its neighbours and both signs, at many scales; zeros and subnormal blocks."""
    values = np.sort(bnb.get_4bit_type(kind, "cpu").numpy())
    midpoints = (values[:-1] + values[1:]) / np.float32(2)
    near = [midpoints, np.nextafter(midpoints, np.float32(9)), np.nextafter(midpoints, np.float32(-9))]
    block = np.concatenate([*near, -midpoints, np.array([1, -1, 0, -0.0], np.float32)]).astype(np.float32)
    block = block[:64]
    scales = [1, 0.37, 3e-5, 1e-20, 3e38, 2e-38, 1.1e-38, 0.99e-38, 5e-39, 1e-44, 0]
    return torch.from_numpy(np.concatenate([block * np.float32(scale) for scale in scales]))


def four_bit(prefix, weights, kind, blocksize, nested=False):
    packed, state = bnb.quantize_4bit(weights, blocksize=blocksize, quant_type=kind, compress_statistics=nested)
    out[prefix + ".input"] = weights
    out[prefix] = packed
    for name, value in state.as_dict(packed=True).items():
        out[prefix + "." + name] = value


for kind in ("nf4", "fp4"):
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        four_bit(f"{kind}.{str(dtype)[6:]}", normal((40, 96), dtype), kind, 64)
    for blocksize in (32, 256, 4096):
        four_bit(f"{kind}.{blocksize}", normal((2, 4096), torch.bfloat16), kind, blocksize)
    four_bit(f"{kind}.edges", edges(kind), kind, 64)
four_bit("nf4.nested", normal((160, 192), torch.bfloat16, 1.0), "nf4", 64, nested=True)

for dtype in (torch.float32, torch.bfloat16, torch.float16):
    prefix = f"int8.{str(dtype)[6:]}"
    weights = normal((33, 100), dtype)
    weights[7] = 0
    weights[8] = normal(100, dtype, 1e-6)
    weights[9, :8] = torch.tensor([127, 0.5, 1.5, 2.5, -0.5, -1.5, 126.5, -126.5])
    stored = bitsandbytes.nn.Int8Params(weights.clone(), requires_grad=False).to("cpu")
    out[prefix + ".input"], out[prefix], out[prefix + ".SCB"] = weights, stored.data, stored.SCB

# Both sides of every sort of rounding, no NaN: torch does not agree with itself about their payload.
bits = random.integers(0, 2**32, 8192, dtype=np.uint64).astype(np.uint32)
halves = np.arange(0, 0x7C00, 37, dtype=np.uint16).view(np.float16).astype(np.float32).view(np.uint32)
bits = np.concatenate([bits, *(halves + step for step in (0xFFF, 0x1000, 0x1001, 0x2FFF, 0x3000))])
bits = np.concatenate([bits, *((bits & 0xFFFF0000) + step for step in (0x7FFF, 0x8000, 0x8001))]).astype(np.uint32)
weights = bits.view(np.float32)
weights = torch.from_numpy(weights[~np.isnan(weights)][:16384])
out["cast.input"], out["cast.fp16"], out["cast.bf16"] = weights, weights.half(), weights.bfloat16()

# FP8: every code, every tie between two of them and what lies beside it, both signs, too large and too small ones.
for name, dtype in (("e4m3", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2)):
    largest = torch.finfo(dtype).max
    codes = torch.arange(128, dtype=torch.uint8).view(dtype).float()
    codes = codes[torch.isfinite(codes)]
    ties = (codes[1:] + codes[:-1]) / 2
    near = [torch.nextafter(ties, torch.tensor(limit)) for limit in (0.0, torch.inf)]
    weights = torch.cat([codes, ties, *near, torch.tensor([largest * 1.02, largest * 1.06, 1e9, 1e-9, 1e-40])])
    weights = torch.cat([weights, -weights])
    out[f"fp8.{name}.input"] = weights
    out[f"fp8.{name}"] = weights.clamp(-largest, largest).to(dtype).view(torch.uint8)

# Scales and codes as compressed-tensors chooses them. In fp32, where it has one way to divide: for 16-bit weights, its
# code for CPUs rounds the quotient to 16 bits first, and its code for GPUs does not.
QuantizationArgs = compressed_tensors.quantization.QuantizationArgs
weights = normal((130, 260), torch.float32)
weights[7] = 0
weights[8] *= 1e-4
weights[9, 5] = 3
out["fp8.input"] = weights
padded = torch.nn.functional.pad(weights, (0, 384 - 260, 0, 256 - 130)).reshape(2, 128, 3, 128)
for strategy, dims, extra in (("tensor", None, {}), ("channel", 1, {}), ("block", (1, 3), {"block_structure": [128, 128]})):
    args = QuantizationArgs(num_bits=8, type="float", strategy=strategy, **extra)
    among = padded if strategy == "block" else weights
    low, high = (among.amin(), among.amax()) if dims is None else (
        among.amin(dims, keepdim=strategy == "channel"), among.amax(dims, keepdim=strategy == "channel"))  # fmt: skip
    scale, _ = compressed_tensors.quantization.utils.calculate_qparams(low, high, args)
    codes = compressed_tensors.quantization.quantize(weights, scale, None, args, dtype=torch.float8_e4m3fn)
    out[f"fp8.{strategy}"], out[f"fp8.{strategy}.scale"] = codes.view(torch.uint8), scale

path = pathlib.Path(__file__).with_name("codecs.safetensors")
versions = {"torch": torch.__version__, "bitsandbytes": bitsandbytes.__version__,
            "compressed-tensors": compressed_tensors.__version__}
save_file({name: tensor.contiguous() for name, tensor in out.items()}, path, {"format": "pt", **versions})
print(path.name, path.stat().st_size, "bytes", json.dumps(versions))
