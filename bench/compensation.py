#!/usr/bin/env python3
"""Compensation (GPTQ's idea, in bitsandbytes' NF4): how long one matrix takes, beside GPTQ in torch, and what it does
to a real model.

    cmake --preset release -DNIBBLE_BENCH=ON && cmake --build build/release --target bench_compensation
    build/peers/bin/python bench/compensation.py speed [--threads 2] [--size 4096]
    build/peers/bin/python bench/compensation.py quality

speed: the factor alone, and the factor and the codes, of a matrix [size, size]. GPTQ in torch is that of the paper's
authors, as GPTQModel and llm-compressor have it: Cholesky, inverse, Cholesky, then columns in turn, 128 of them before
the columns that follow are corrected; its scales are the largest magnitudes of blocks of 64. Both take their turns,
`--rounds` times; what is printed are medians.

quality: all-MiniLM-L6-v2 and the sentences of judged_model.py, with all matrices of its encoder quantized and decoded
again. Prints, for each way to quantize, the signal-to-noise ratio of the weights and of the layers' outputs under the
statistics, and 1 - cosine of the sentences' embeddings to the original's. The scheme and double quantization are
bitsandbytes', so the bytes on disk are as many.
"""

import argparse
import functools
import json
import pathlib
import statistics
import tempfile
import time

import judged_model
import record
import torch

CODECS = ["nf4:double-quant=no", "nf4:double-quant=no,absmax=search", "nf4", "nf4:absmax=search",
          "fp4:double-quant=no,absmax=search", "int8"]  # fmt: skip
ORDERS = {"": [], ", largest first": ["--largest-first"]}
ORDERED = ["nf4:double-quant=no", "nf4:absmax=search"]  # also with the columns in another order


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

    def run(self, codec, *options):
        """(the decoded weight, its seconds)"""
        command = [self.program, self.files["weight"], self.files["moment"], *self.shape, "--codec", codec,
                   "--threads", self.threads, "--out", self.files["decoded"], *options]  # fmt: skip
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


def quality(options):
    import bitsandbytes.functional as bnb
    from safetensors import safe_open

    torch.set_num_threads(options.threads)
    calibrated, judged = judged_model.sentences()
    model, tokenizer = judged_model.load(judged_model.original())
    room = tempfile.TemporaryDirectory()
    stats = judged_model.calibrate(calibrated, pathlib.Path(room.name), "--second-moments")
    calibration = json.loads((stats / "calibration.json").read_text())
    parameters = dict(model.named_parameters())
    names = [name for name in calibration["weights"] if name.startswith("encoder.")]
    original = {name: parameters[name].data.clone() for name in names}
    inputs = {name: calibration["weights"][name][0] for name in names}
    moments = {}
    for name in set(inputs.values()):
        with safe_open(stats / calibration["inputs"][name]["file"], "pt") as file:
            moments[name] = file.get_tensor(name + ".second_moment")
    ours = Compensation(options.build, options.threads)

    reference = judged_model.passes(model, tokenizer, judged)
    results = record.Results(options.out, {**record.host("bench/compensation.py"), "sentences": len(judged)})

    def judge(label, quantize):
        noise, signal = {"weights": 0.0, "outputs": 0.0}, {"weights": 0.0, "outputs": 0.0}
        for name, weight in original.items():
            decoded, moment, zeros = quantize(weight, inputs[name]), moments[inputs[name]], torch.zeros_like(weight)
            noise["weights"] += (weight - decoded).double().square().sum().item()
            signal["weights"] += weight.double().square().sum().item()
            noise["outputs"] += output_error(weight, decoded, moment)
            signal["outputs"] += output_error(weight, zeros, moment)
            parameters[name].data.copy_(decoded)
        lost = judged_model.lost(judged_model.passes(model, tokenizer, judged), reference)
        for name, weight in original.items():
            parameters[name].data.copy_(weight)
        snr = {what: judged_model.decibels(signal[what] / noise[what]) for what in noise}
        mean, error, worst = lost.values()
        print(f"{label:<50}{snr['weights']:7.2f} dB{snr['outputs']:7.2f} dB{mean:9.5f} +- {error:.5f}{worst:9.4f}",
              flush=True)  # fmt: skip
        results.add(f"minilm/{label}", mean, "1 - cosine", standard_error=error, worst=worst,
                    weight_snr_db=snr["weights"], output_snr_db=snr["outputs"])  # fmt: skip
        results.save()

    def bitsandbytes(weight, _, nested):
        packed, state = bnb.quantize_4bit(weight, blocksize=64, compress_statistics=nested, quant_type="nf4")
        return bnb.dequantize_4bit(packed, state)

    def compensated(codec, order, weight, name):
        ours.give(weight, moments[name])
        return ours.run(codec, *order)[0]

    judge("bitsandbytes, nf4", lambda w, name: bitsandbytes(w, name, False))
    judge("bitsandbytes, nf4, double quantization", lambda w, name: bitsandbytes(w, name, True))
    for codec in options.codecs:
        for label, options_of_order in ORDERS.items():
            if not options_of_order or codec in ORDERED:
                run = functools.partial(compensated, codec, options_of_order)
                judge(f"compensated {codec}{label}", run)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for run in (speed, quality):
        command = commands.add_parser(run.__name__)
        command.set_defaults(run=run)
        record.add_options(command, f"compensation_{run.__name__}")
        command.add_argument("--threads", type=int, default=2)
        if run is speed:
            command.add_argument("--size", type=int, default=4096)
        else:
            command.add_argument("--codecs", nargs="+", default=CODECS)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
