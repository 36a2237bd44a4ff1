#!/usr/bin/env python3
"""How long a search takes that knows the mean squares of the inputs.

    build/peers/bin/python bench/calibration.py

Needs build/release/nibble and python/peers.sh --loading. Prints, and writes to bench/results/calibration.jsonl, the
time that a conversion of a matrix of 4096 x 4096 in bf16 takes on one thread, with statistics relative to without: the
least of --rounds interleaved runs each. What it does for a model: bench/quality.py.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile
import time

import record
import safetensors.torch
import torch

TARGETS = ("nf4:double-quant=no", "nf4", "int8")


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
    results = record.Results(arguments.out, record.host("bench/calibration.py"))
    with tempfile.TemporaryDirectory() as folder:
        for target in TARGETS:
            seconds = relative_time(arguments.build / "nibble", pathlib.Path(folder), target, arguments.rounds)
            results.lines[target] = {"name": f"time of {target}", **seconds}
            print(record.rounded(results.lines[target]), flush=True)
    results.save()


if __name__ == "__main__":
    main()
