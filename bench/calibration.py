#!/usr/bin/env python3
"""What statistics of the inputs do for a real model: all-MiniLM-L6-v2 in NF4 and int8, with each choice of absmax.

    build/peers/bin/python bench/calibration.py

Needs build/release/nibble and python/peers.sh --loading. The sentences are those of judged_model.py. Prints, and writes
to bench/results/calibration.jsonl:

    weight_snr_db   20 log10(|W| / |W - W'|) over all linear layers together
    output_snr_db   the mean over the layers of 10 log10(|X W|^2 / |X (W - W')|^2), X from the original model
    cosine          1 - the cosine of a sentence's vector and that of the original model: mean, standard error, worst

And the time that a conversion of a matrix of 4096 x 4096 in bf16 takes on one thread, with statistics relative to
without: the least of --rounds interleaved runs each.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

import judged_model
import record
import safetensors.torch
import torch
from judged_model import decibels, linear, passes

TARGETS = ("nf4:double-quant=no", "nf4", "int8")
CHOICES = ("max", "search-positive", "search", "weighted")


def second_moments(model, tokenizer, text):
    """{layer: X^T X}"""
    rows = {}
    passes(model, tokenizer, text, lambda name, x: rows.setdefault(name, []).append(x))
    return {name: (x := torch.cat(rows[name])).T @ x for name in rows}


def judge(original, test, moments, reference, tokenizer, text):
    weight, error, outputs = 0.0, 0.0, []
    for name, layer in linear(original).items():
        before, after = layer.weight.double(), linear(test)[name].weight.double()
        weight += before.square().sum().item()
        error += (after - before).square().sum().item()
        if name in moments:
            energy = [((w.float() @ moments[name]) * w.float()).sum() for w in (before, after - before)]
            outputs.append(decibels(energy[0] / energy[1]))
    return {"weight_snr_db": decibels(weight / error), "output_snr_db": sum(outputs) / len(outputs),
            **judged_model.lost(passes(test, tokenizer, text), reference)}  # fmt: skip


def relative_time(nibble, folder, target, rounds):
    size, name = 4096, "layers.0.mlp.up_proj"
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(size, size, generator=generator).bfloat16()
    safetensors.torch.save_file({f"{name}.weight": weight}, folder / "large.safetensors")
    (folder / "made").mkdir(exist_ok=True)
    squares = torch.randn(size, generator=generator).exp()
    safetensors.torch.save_file({f"{name}.mean_square": squares, f"{name}.absmax": squares.sqrt()},
                                folder / "made" / "whole.safetensors")  # fmt: skip
    (folder / "made" / "calibration.json").write_text(json.dumps({
        "format": "nibble.calibration", "version": 1, "second_moments": False, "weights": {f"{name}.weight": [name]},
        "inputs": {name: {"columns": size, "tokens": 1, "file": "whole.safetensors"}}}))  # fmt: skip
    seconds = {}
    for _ in range(rounds):
        for way, options in (("largest", []), ("search", ["--absmax", "search"]),
                             ("weighted", ["--absmax", "search", "--calibration", folder / "made"])):  # fmt: skip
            begin = time.perf_counter()
            subprocess.run([nibble, "convert", folder / "large.safetensors", folder / "large-out.safetensors", "--to",
                            target, *options, "--overwrite", "--threads", "1", "--progress", "none",
                            "--error-report", "none"], check=True, stdout=subprocess.DEVNULL)  # fmt: skip
            seconds[way] = min(seconds.get(way, 1e9), time.perf_counter() - begin)
    return seconds | {"weighted_to_search": seconds["weighted"] / seconds["search"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    record.add_options(parser, "calibration")
    arguments = parser.parse_args()
    nibble, source = arguments.build / "nibble", judged_model.original()
    torch.set_num_threads(1)
    calibrated, judged = judged_model.sentences()
    original, tokenizer = judged_model.load(source)
    moments = second_moments(original, tokenizer, judged)
    reference = passes(original, tokenizer, judged)
    results = record.Results(arguments.out, record.host("bench/calibration.py") | {
        "calibrated_on": len(calibrated), "judged_on": len(judged), "peers": record.peer_versions(sys.executable)})  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        stats = judged_model.calibrate(calibrated, folder)
        for target in TARGETS:
            for choice in CHOICES:
                if (target, choice) == ("int8", "search-positive"):
                    continue  # the same as search
                options = ["--absmax", "search", "--calibration", stats] if choice == "weighted" else \
                    ["--absmax", choice]  # fmt: skip
                for command in (["convert", source, folder / "out", "--to", target, *options],
                                ["dequantize", folder / "out", folder / "plain", "--to", "fp32"]):  # fmt: skip
                    subprocess.run([nibble, *command, "--overwrite", "--progress", "none"], check=True,
                                   stdout=subprocess.DEVNULL)  # fmt: skip
                test, _ = judged_model.load(folder / "plain")
                figures = judge(original, test, moments, reference, tokenizer, judged)
                name = f"{target} {choice}"
                results.lines[name] = {"name": name, **figures}
                print(record.rounded(results.lines[name]), flush=True)
        for target in TARGETS:
            name = f"time of {target}"
            results.lines[name] = {"name": name, **relative_time(nibble, folder, target, arguments.rounds)}
            print(record.rounded(results.lines[name]), flush=True)
    results.save()


if __name__ == "__main__":
    main()
