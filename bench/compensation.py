#!/usr/bin/env python3
"""Compensation (GPTQ's idea, in bitsandbytes' NF4): how long one matrix takes, beside GPTQ in torch.

    cmake --preset release -DNIBBLE_BENCH=ON && cmake --build build/release --target bench_compensation
    build/peers/bin/python bench/compensation.py [--threads 2] [--size 4096]

The factor alone, and the factor and the codes, of a matrix [size, size]. GPTQ in torch is that of the paper's authors,
as GPTQModel and llm-compressor have it: Cholesky, inverse, Cholesky, then columns in turn, 128 of them before the
columns that follow are corrected; its scales are the largest magnitudes of blocks of 64. Both take their turns,
`--rounds` times; what is printed are medians. What compensation does for a model: bench/quality.py.
"""

import argparse
import json
import pathlib
import statistics
import tempfile
import time

import record
import torch

CODECS = ["nf4:double-quant=no", "nf4:double-quant=no,absmax=search", "nf4", "nf4:absmax=search",
          "fp4:double-quant=no,absmax=search", "int8"]  # fmt: skip


class Compensation:
    """bench_compensation on tensors."""

    def __init__(self, build, threads):
        self.program, self.threads = build / "bench" / "bench_compensation", threads
        self.room = tempfile.TemporaryDirectory()
        self.files = {name: pathlib.Path(self.room.name) / name for name in ("weight", "moment", "decoded")}

    def give(self, weight, moment):
        weight.float().contiguous().numpy().tofile(self.files["weight"])
        moment.double().contiguous().numpy().tofile(self.files["moment"])
        self.shape = weight.shape

    def run(self, codec):
        """(the decoded weight, its seconds)"""
        command = [self.program, self.files["weight"], self.files["moment"], *self.shape, "--codec", codec,
                   "--threads", self.threads, "--out", self.files["decoded"]]  # fmt: skip
        seconds = json.loads(record.output_of(*map(str, command)))
        decoded = torch.from_file(str(self.files["decoded"]), size=self.shape.numel()).clone()
        return decoded.reshape(self.shape), seconds


def nf4_values():
    import bitsandbytes.functional as bnb

    return bnb.get_4bit_type("nf4", device="cpu")


def gptq(weight, moment, values, blocksize=64, lazy=128):
    """GPTQ with the scales of NF4."""
    w, h = weight.clone(), moment.float().clone()
    midpoints = (values[1:] + values[:-1]) / 2
    h.diagonal().add_(0.01 * h.diagonal().mean())
    h = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(h)), upper=True)
    for first in range(0, w.shape[1], lazy):
        end = min(first + lazy, w.shape[1])
        part, factor = w[:, first:end].clone(), h[first:end, first:end]
        errors, decoded = torch.zeros_like(part), torch.zeros_like(part)
        for i in range(end - first):
            if i % blocksize == 0:
                absmax = part[:, i : i + blocksize].abs().amax(1).clamp(min=1e-38)
            decoded[:, i] = values[torch.bucketize(part[:, i] / absmax, midpoints)] * absmax
            errors[:, i] = (part[:, i] - decoded[:, i]) / factor[i, i]
            part[:, i:] -= errors[:, i : i + 1] @ factor[i : i + 1, i:]
        w[:, first:end] = decoded
        w[:, end:] -= errors @ h[first:end, end:]
    return w


def output_error(weight, decoded, moment):
    difference = (weight - decoded).double()
    return ((difference @ moment.double()) * difference).sum().item()


def speed(options):
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    n = options.size
    weight = torch.randn(n, n) / n**0.5
    inputs = torch.randn(2 * n, n // 4) @ torch.randn(n // 4, n) / n**0.5 + torch.randn(2 * n, n)
    moment = inputs.T @ inputs / (2 * n)
    ours = Compensation(options.build, options.threads)
    ours.give(weight, moment)
    results = record.Results(options.out, {**record.host("bench/compensation.py"), "threads": options.threads})
    seconds, values = {}, nf4_values()
    for _ in range(options.rounds):
        for codec in CODECS:
            decoded, took = ours.run(codec)
            seconds.setdefault("the factor", []).append(took["factor_s"])
            seconds.setdefault(codec, []).append(took["factor_s"] + took["code_s"])
            results.add(f"compensation/{n}/{codec}/factor", took["factor_s"], "s")
            results.add(f"compensation/{n}/{codec}/codes", took["code_s"], "s")
            if codec == "nf4:double-quant=no":
                error = output_error(weight, decoded, moment)
        begin = time.perf_counter()
        torch.linalg.cholesky(moment.double())
        seconds.setdefault("Cholesky in torch, fp64", []).append(time.perf_counter() - begin)
        results.add(f"compensation/{n}/cholesky in torch", seconds["Cholesky in torch, fp64"][-1], "s")
        begin = time.perf_counter()
        theirs = gptq(weight, moment, values)
        seconds.setdefault("GPTQ in torch", []).append(time.perf_counter() - begin)
        results.add(f"compensation/{n}/gptq in torch", seconds["GPTQ in torch"][-1], "s")
    for who, times in seconds.items():
        print(f"{who:<40}{statistics.median(times):8.2f} s")
    ratio = error / output_error(weight, theirs, moment)
    print(f"error of the output, over that of GPTQ in torch: {ratio:.5f}")
    results.add(f"compensation/{n}/nf4:double-quant=no/output error", ratio, "of GPTQ in torch")
    results.save()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    record.add_options(parser, "compensation")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--size", type=int, default=4096)
    speed(parser.parse_args())


if __name__ == "__main__":
    main()
