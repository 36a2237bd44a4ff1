#!/usr/bin/env python3
"""Quantizing to NF4 with double quantization and back, as operators for torch on the CPU beside bitsandbytes' functions.

    PYTHONPATH=python NIBBLE_TORCH_LIBRARY=build/release/python/torch/libnibble_torch.so \
      build/peers/bin/python bench/quantize_cpu.py [--rounds 5] [--threads 2] [--out bench/results/quantize_cpu.jsonl]

A matrix [4096, 4096]. Clocks, samples and weights are those of bench/matmul_cpu.py: nothing is in a cache.
"""

import argparse
import time

import bitsandbytes.functional as peer
import nibble.operators  # noqa: F401
import record
import torch
from matmul_cpu import clock_for, copies, host

N, K = 4096, 4096


def contenders(dtype):
    """{what: (a call of nibble, one of bitsandbytes)}, each call on the next of its operands."""
    ops = torch.ops.nibble
    weight = (torch.randn(N, K) / K**0.5).to(dtype)
    state = peer.quantize_4bit(weight, blocksize=64, compress_statistics=True, quant_type="nf4")
    packed, absmax = ops.quantize_4bit(weight, 64, "nf4")
    absmax_codes, nested_absmax, offset = ops.quantize_absmax(absmax)
    weights, four_bit, codes = copies(weight), copies(packed, absmax_codes, nested_absmax), copies(state[0])

    def quantize():
        ops.quantize_absmax(ops.quantize_4bit(next(weights)[0], 64, "nf4")[1])

    def dequantize():
        parts = next(four_bit)
        ops.dequantize_4bit(*parts, ops.quant_map("nested"), offset, [N, K], 64, "nf4", dtype)

    return {
        "quantize_4bit": (
            quantize,
            lambda: peer.quantize_4bit(next(weights)[0], blocksize=64, compress_statistics=True, quant_type="nf4"),
        ),
        "dequantize_4bit": (dequantize, lambda: peer.dequantize_4bit(next(codes)[0], state[1])),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    record.add_options(parser, "quantize_cpu")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    clock = clock_for(options.threads)
    results = record.Results(options.out, host("bench/quantize_cpu.py", options.threads))
    for dtype, name in ((torch.float32, "fp32"), (torch.bfloat16, "bf16")):
        for what, calls in contenders(dtype).items():
            samples = {"nibble": [], "bitsandbytes": []}
            for _ in range(options.rounds):
                for (who, times), call in zip(samples.items(), calls):
                    begin = clock()
                    call()
                    times.append(1e3 * (clock() - begin))
                    results.add(f"{what}/{name}/{who}", times[-1], "ms")
            best, theirs = (min(times) for times in samples.values())
            print(f"{what:<16}{name}{best:>9.2f} ms, bitsandbytes {theirs:.1f} ms: {theirs / best:.1f} x", flush=True)
    results.save()


if __name__ == "__main__":
    main()
