#!/usr/bin/env python3
"""Compensation (GPTQ's idea, in bitsandbytes' NF4): how long a matrix takes, beside GPTQ in torch and llm-compressor's.

    cmake --preset release -DNIBBLE_BENCH=ON && cmake --build build/release --target bench_compensation
    bench/peers/quantizers.sh
    build/peers/bin/python bench/compensation.py [--threads 2] [--size 4096]

The factor alone, and the factor and the codes, of a matrix [size, size]. GPTQ in torch is that of the paper's authors,
as GPTQModel and llm-compressor have it: Cholesky, inverse, Cholesky, then columns in turn, 128 of them before the
columns that follow are corrected; its scales are the largest magnitudes of blocks of 64. llm-compressor's is its
function quantize_weight, which cannot write NF4: int4, symmetric, groups of 64; without llm-compressor, it is left out.
All take their turns, `--rounds` times; what is printed are medians. With one thread, a time is processor time, which
other work changes little. What compensation does for a model: bench/quality.py. `bench/table.py --write
docs/compensation.md` makes a table of the results.
"""

import argparse
import json
import pathlib
import statistics
import sys
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
        took = json.loads(record.output_of(*map(str, command)))
        clock = "_processor_s" if self.threads == 1 else "_s"
        seconds = {part: took[part + clock] for part in ("factor", "code")}
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


def llm_compressor():
    """llm-compressor's GPTQ, as a function of a weight and a second moment; None without llm-compressor."""
    if not record.QUANTIZERS.is_dir():
        print("llm-compressor is left out: bench/peers/quantizers.sh has not been run")
        return None
    # Its compressed-tensors comes before that of build/peers; what else it needs is beside trl.
    sys.path[:] = [str(record.QUANTIZERS), *sys.path, str(record.PEERS.parent.parent / "trl")]
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.utils import calculate_qparams
    from llmcompressor.modifiers.gptq.gptq_quantize import quantize_weight

    arguments = QuantizationArgs(num_bits=4, type="int", symmetric=True, strategy="group", group_size=64)

    def run(weight, moment):
        groups = weight.unflatten(1, (-1, 64))
        scale, zero = calculate_qparams(groups.amin(-1), groups.amax(-1), arguments)
        # It changes the weight and the moment that it is given.
        batch = weight.clone()[None], moment.clone()[None], scale[None], zero[None]
        return quantize_weight(*batch, None, arguments)[0][0]

    run(torch.randn(128, 128), torch.eye(128))  # once unmeasured
    return run


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
    run = {**record.host("bench/compensation.py"), "threads": options.threads, "size": n}
    versions = record.peer_versions(sys.executable, record.QUANTIZERS)
    run["peers"] = {name: versions[name] for name in ("torch", "llmcompressor") if name in versions}
    results = record.Results(options.out, run)
    seconds, values, peer = {}, nf4_values(), llm_compressor()
    clock = time.process_time if options.threads == 1 else time.perf_counter
    for _ in range(options.rounds):
        for codec in CODECS:
            decoded, took = ours.run(codec)
            seconds.setdefault("the factor", []).append(took["factor"])
            seconds.setdefault(codec, []).append(took["factor"] + took["code"])
            results.add(f"compensation/{n}/{codec}/factor", took["factor"], "s")
            results.add(f"compensation/{n}/{codec}/codes", took["code"], "s")
            if codec == "nf4:double-quant=no":
                error = output_error(weight, decoded, moment)
        begin = clock()
        torch.linalg.cholesky(moment.double())
        seconds.setdefault("Cholesky in torch, fp64", []).append(clock() - begin)
        results.add(f"compensation/{n}/cholesky in torch", seconds["Cholesky in torch, fp64"][-1], "s")
        begin = clock()
        theirs = gptq(weight, moment, values)
        seconds.setdefault("GPTQ in torch", []).append(clock() - begin)
        results.add(f"compensation/{n}/gptq in torch", seconds["GPTQ in torch"][-1], "s")
        if peer:
            begin = clock()
            int4 = peer(weight, moment)
            seconds.setdefault("llm-compressor", []).append(clock() - begin)
            results.add(f"compensation/{n}/llm-compressor", seconds["llm-compressor"][-1], "s")
    for who, times in seconds.items():
        print(f"{who:<40}{statistics.median(times):8.2f} s")
    ratio = error / output_error(weight, theirs, moment)
    print(f"error of the output, over that of GPTQ in torch: {ratio:.5f}")
    results.add(f"compensation/{n}/nf4:double-quant=no/output error", ratio, "of GPTQ in torch")
    if peer:
        ratio = error / output_error(weight, int4, moment)
        print(f"error of the output, over that of llm-compressor's int4: {ratio:.5f}")
        results.add(f"compensation/{n}/nf4:double-quant=no/output error to int4", ratio, "of llm-compressor")
    results.save()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    record.add_options(parser, "compensation")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--size", type=int, default=4096)
    speed(parser.parse_args())


if __name__ == "__main__":
    main()
