#!/usr/bin/env python3
"""Quantizing to NF4 with double quantization and back, as operators for torch on the CPU beside bitsandbytes' functions.

    PYTHONPATH=python NIBBLE_TORCH_LIBRARY=build/release/python/torch/libnibble_torch.so \
      build/peers/bin/python bench/quantize_cpu.py [--rounds 5] [--threads 2] [--out bench/results/quantize_cpu.jsonl]

A matrix [4096, 4096]. Clocks, samples and weights are those of bench/matmul_cpu.py: nothing is in a cache. Beside
dequantize_4bit stands how long it takes to fill its result alone: "fresh", a tensor that torch has just made, as
bitsandbytes does, and "again", one that was filled before. Time is for page faults as far as these two differ.
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
    """{what: {who: a call}}, each call on the next of its operands. The first is nibble's, the second bitsandbytes'."""
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

    filled = torch.zeros(N, K, dtype=dtype)
    return {
        "quantize_4bit": {
            "nibble": quantize,
            "bitsandbytes": lambda: peer.quantize_4bit(
                next(weights)[0], blocksize=64, compress_statistics=True, quant_type="nf4"
            ),
        },
        "dequantize_4bit": {
            "nibble": dequantize,
            "bitsandbytes": lambda: peer.dequantize_4bit(next(codes)[0], state[1]),
            "fill fresh": lambda: torch.empty(N, K, dtype=dtype).zero_(),
            "fill again": lambda: filled.zero_(),
        },
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
            samples = {who: [] for who in calls}
            for _ in range(options.rounds):
                for who, call in calls.items():
                    begin = clock()
                    call()
                    samples[who].append(1e3 * (clock() - begin))
                    results.add(f"{what}/{name}/{who}", samples[who][-1], "ms")
            best, *others = (min(times) for times in samples.values())
            beside = ", ".join(f"{who} {time:.2f} ms ({time / best:.1f} x)" for who, time in zip([*calls][1:], others))
            print(f"{what:<16}{name}{best:>9.2f} ms; {beside}", flush=True)
    results.save()


if __name__ == "__main__":
    main()
