#!/usr/bin/env python3
"""Products with NF4 and int8 weights on the CPU beside torch's and bitsandbytes': milliseconds and ratios.

    PYTHONPATH=python NIBBLE_TORCH_LIBRARY=build/release/python/torch/libnibble_torch.so \
      build/peers/bin/python bench/matmul_cpu.py [--rounds 15] [--threads 2] [--out bench/results/matmul_cpu.jsonl]

All of them take turns within a round, each with the next of its weights, of which it has more than 1 GB: no cache holds
a weight. A time is the least of all rounds, which is what a busy machine changes least; the median stands beside it in
the file. With one thread it is the thread's processor time, so that a busy machine can be used at all: threads that wait
for each other tell nothing there. `read` is the time in which torch sums up as many bytes as the NF4 weight has.
"""

import argparse
import functools
import itertools
import time

import nibble.operators  # noqa: F401
import record
import torch

UNCACHED_BYTES = 1_050_000_000
SHAPES = ((4096, 4096), (11008, 4096))
TOKENS = (1, 16, 512)


def clock_for(threads):
    """Wall time, or the processor time of the only thread."""
    return time.thread_time if threads == 1 else time.perf_counter


def host(bench, threads):
    return {**record.host(bench), "threads": threads, "torch": torch.__version__}


def copies(*tensors, uncached=UNCACHED_BYTES):
    """Endless tuples of such tensors, which together have more than `uncached` bytes."""
    size = sum(tensor.nbytes for tensor in tensors)
    return itertools.cycle([tuple(t.clone() for t in tensors) for _ in range(uncached // size + 1)])


def weights(n, k, uncached):
    """{name: endless tuples}, made once for each shape."""
    many = functools.partial(copies, uncached=uncached)
    ops = torch.ops.nibble
    w = torch.randn(n, k) / k**0.5
    packed, absmax = ops.quantize_4bit(w, 64, "nf4")
    absmax_codes, nested_absmax, offset = ops.quantize_absmax(absmax)
    four_bit = many(packed, absmax_codes, nested_absmax)
    scales = torch.cat((torch.ones(n, k // 64, 1), torch.zeros(n, k // 64, 1)), 2).transpose(0, 1).contiguous().bfloat16()
    int4 = torch.ops.aten._convert_weight_to_int4pack_for_cpu(torch.randint(0, 16, (n, k), dtype=torch.int32), 1)
    return {
        "nf4": ((*parts, ops.quant_map("nested"), offset) for parts in four_bit),
        "int8": many(*ops.quantize_int8(w)),
        "fp32": many(w),
        "bf16": many(w.bfloat16()),
        "int4": ((part, scales) for (part,) in many(int4)),
        "read": many(torch.zeros((packed.nbytes + absmax_codes.nbytes) // 4)),
    }


def contenders(n, k, m, dx, source):
    """{name: a call without arguments}"""
    ops, linear = torch.ops.nibble, torch.nn.functional.linear
    inner, calls = (n if dx else k), {}
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        x, name = torch.randn(m, inner).to(dtype), {"torch.float32": "fp32", "torch.bfloat16": "bf16"}.get(str(dtype), "fp16")

        def nf4(x=x):
            packed, codes, nested, quant_map, offset = next(source["nf4"])
            if dx:
                return ops.linear_4bit_dx(x, packed, codes, nested, quant_map, offset, k, 64, "nf4")
            return ops.linear_4bit(x, packed, codes, nested, quant_map, offset, None, n, 64, "nf4")

        def int8(x=x):
            codes, absmax = next(source["int8"])
            return ops.linear_int8_dx(x, codes, absmax) if dx else ops.linear_int8(x, codes, absmax, None)

        def plain(x=x, name=name):
            (w,) = next(source[name])
            return x @ w if dx else linear(x, w)

        calls[f"nibble nf4 {name}"], calls[f"nibble int8 {name}"] = nf4, int8
        if name in source:
            calls[f"torch {name}"] = plain
    if not dx and m < 512:
        x = torch.randn(m, k).bfloat16()
        calls["torch int4pack bf16"] = lambda: torch.ops.aten._weight_int4pack_mm_for_cpu(x, *first_and_group(source))
    calls["read"] = lambda: next(source["read"])[0].sum()
    return calls


def first_and_group(source):
    packed, scales = next(source["int4"])
    return packed, 64, scales


def bitsandbytes_calls(n, k, m, dx):
    """Of one layer in bf16, whose weight lies in the cache."""
    import bitsandbytes

    layer = bitsandbytes.nn.Linear4bit(k, n, bias=False, compute_dtype=torch.bfloat16, quant_type="nf4").to("cpu")
    x, dy = torch.randn(m, k).bfloat16().requires_grad_(dx), torch.randn(m, n).bfloat16()
    if not dx:
        return {"bitsandbytes nf4 bf16": lambda: layer(x)}
    y = layer(x)
    return {"bitsandbytes nf4 bf16": lambda: torch.autograd.grad(y, x, dy, retain_graph=True)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    record.add_options(parser, "matmul_cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=20, help="at most so long for each shape and m [20]")
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS, help="rows of x [1 16 512]")
    parser.add_argument("--rows", type=int, nargs="+", help="only the weights with so many rows")
    parser.add_argument(
        "--uncached", type=int, default=UNCACHED_BYTES, help="bytes of weights of a kind: more than the caches hold"
    )
    parser.add_argument("--leave-out", nargs="+", default=(), help="contenders, such as 'torch bf16'")
    options = parser.parse_args()
    if not set(options.leave_out) <= {"torch bf16", "torch int4pack bf16", "bitsandbytes nf4 bf16"}:
        parser.error("--leave-out: only 'torch bf16', 'torch int4pack bf16' and 'bitsandbytes nf4 bf16' can be left out")
    torch.set_num_threads(options.threads)
    clock = clock_for(options.threads)
    results = record.Results(options.out, host("bench/matmul_cpu.py", options.threads))
    for n, k in SHAPES:
        if options.rows and n not in options.rows:
            continue
        source = weights(n, k, options.uncached)
        for m, dx in itertools.product(options.tokens, (False, True)):
            calls = {**contenders(n, k, m, dx, source), **bitsandbytes_calls(n, k, m, dx)}
            calls = {name: call for name, call in calls.items() if name not in options.leave_out}
            samples = {name: [] for name in calls}
            end = time.monotonic() + options.seconds
            while len(samples["read"]) < 4 or (len(samples["read"]) < options.rounds and time.monotonic() < end):
                for name, call in calls.items():
                    begin = clock()
                    call()
                    samples[name].append(1e3 * (clock() - begin))
            best = min(min(samples[name]) for name in ("torch fp32", "torch bf16") if name in samples)
            print(f"{n}x{k}, {m} tokens, {'dx' if dx else 'y'}: torch's better of those measured {best:.2f} ms")
            for name, times in samples.items():
                for t in times:
                    results.add(f"{n}x{k}/{m}/{'dx' if dx else 'y'}/{name}", t, "ms")
                print(f"  {name:<22}{min(times):>9.2f} ms{min(times) / best:>8.2f} of torch's better", flush=True)
    results.save()


if __name__ == "__main__":
    main()
