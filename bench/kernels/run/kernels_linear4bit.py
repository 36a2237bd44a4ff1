#!/usr/bin/env python3
"""bitsandbytes' Linear4bit, forward and backward, beside torch's product with a bf16 weight: lines of JSON.

Random data; the layers take turns, more than 250 MB of them, so that no cache holds a weight. A time is the median of
15 rounds between two events, a call's share of a round over all layers. 77: there is no GPU. 78: torch or bitsandbytes
is not there.
"""

import json
import statistics
import sys

import kernels_gpu

SHAPES = ((4096, 4096), (14336, 4096), (28672, 8192))
TOKENS = (1, 16, 64, 1024, 4096)
UNCACHED_BYTES, ROUNDS = 250_000_000, 15


def times(torch, calls):
    """Microseconds of one of the calls: medians, with a tenth of the rounds below and above."""
    for call in calls:
        call()
    samples = []
    for _ in range(ROUNDS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for call in calls:
            call()
        end.record()
        end.synchronize()
        samples.append(1e3 * begin.elapsed_time(end) / len(calls))
    samples.sort()
    return {"unit": "us", "median": statistics.median(samples), "low": samples[ROUNDS // 10],
            "high": samples[-1 - ROUNDS // 10], "replays": ROUNDS, "calls": len(calls)}  # fmt: skip


def report(name, measured, **more):
    print(json.dumps({"name": name, **measured, **more}), flush=True)


def layers(torch, bitsandbytes, n, k):
    """Linear4bit of nested NF4, and plain bf16 weights, each with enough copies."""
    weight = (torch.randn(n, k, dtype=torch.bfloat16, device="cuda") * 0.02).cpu()  # to() quantizes on its way there
    quantized = []
    for _ in range(max(2, UNCACHED_BYTES // (n * k // 2) + 1)):
        layer = bitsandbytes.nn.Linear4bit(k, n, bias=False, compute_dtype=torch.bfloat16, compress_statistics=True,
                                           quant_type="nf4", device="meta")  # fmt: skip
        layer.weight = bitsandbytes.nn.Params4bit(weight.clone(), requires_grad=False, compress_statistics=True,
                                                  quant_type="nf4")  # fmt: skip
        quantized.append(layer.cuda())
    plain = [weight.cuda() for _ in range(max(2, UNCACHED_BYTES // (2 * n * k) + 1))]
    return quantized, plain


def measure(torch, bitsandbytes, n, k):
    quantized, plain = layers(torch, bitsandbytes, n, k)
    for m in TOKENS:
        x = torch.randn(m, k, dtype=torch.bfloat16, device="cuda", requires_grad=True)
        dy = torch.randn(m, n, dtype=torch.bfloat16, device="cuda")
        by = {
            "bitsandbytes": [lambda layer=layer: layer(x) for layer in quantized],
            "torch-bf16": [lambda w=w: torch.nn.functional.linear(x, w) for w in plain],
        }
        for who, calls in by.items():
            with torch.no_grad():
                forward = times(torch, calls)
            both = times(torch, [lambda call=call: torch.autograd.grad(call(), x, dy) for call in calls])
            flops = 2e-6 * m * n * k
            report(f"linear4bit/forward/{n}x{k}/m{m}/{who}", forward, tflop_s=flops / forward["median"])
            report(f"linear4bit/forward-backward/{n}x{k}/m{m}/{who}", both, tflop_s=2 * flops / both["median"])


def main():
    kernels_gpu.end_without_gpu()
    try:
        import bitsandbytes
        import torch
    except Exception as error:  # a library that it needs may be missing, too
        print(f"left out: {type(error).__name__}: {error}")
        sys.exit(kernels_gpu.NOT_THERE)
    print(json.dumps({"name": "versions", "torch": torch.__version__, "bitsandbytes": bitsandbytes.__version__}))
    torch.manual_seed(1)
    for n, k in SHAPES:
        measure(torch, bitsandbytes, n, k)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
