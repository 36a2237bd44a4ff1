#!/usr/bin/env python3
"""`nibble convert --device cuda` beside `--device cpu` on a generated checkpoint of 4.3 GB: lines of JSON.

    kernels_convert.py --scratch FOLDER [--layers 4]

The outputs must be equal, byte by byte; times are of whole processes, in turns, with the input in the page cache.
Without a GPU a small checkpoint goes through the same on the CPU, and the exit code is 77. Needs 8 GB of disk.
"""

import argparse
import filecmp
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import checkpoints
import kernels_gpu

NIBBLE = pathlib.Path(__file__).resolve().parent / "bin" / "nibble"
ROUNDS = 3


def small_checkpoint(folder):
    """Two tensors of 64 x 64 weights, instead of gigabytes."""
    folder.mkdir(parents=True)
    path = folder / "model.safetensors"
    tensors = {f"model.layers.{i}.mlp.up_proj.weight": (64, 64) for i in range(2)}
    entries, size = checkpoints.header_of(tensors, "BF16", 2)
    with open(path, "wb") as file:
        checkpoints.write_header(file, entries)
        file.write(bytes(range(64)) * (size // 64))
    return path


def timed(command):
    """(wall, user and system seconds together, peak memory in bytes) of a process that succeeds."""
    with tempfile.TemporaryFile() as errors:
        begin = time.perf_counter()
        process = subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL, stderr=errors)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            errors.seek(0)
            sys.exit(f"{' '.join(map(str, command))} ends with {process.returncode}: {errors.read().decode()}")
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10


def remove(path):
    """A file, and the manifest that nibble writes beside its outputs."""
    for one in (path, path.with_name(path.name + ".nibble.json")):
        one.unlink(missing_ok=True)


def seconds_of_reading(path):
    begin = time.perf_counter()
    buffer = bytearray(8 << 20)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    return time.perf_counter() - begin


def seconds_of_writing(path, size):
    """As long as nibble's own output takes: written and flushed."""
    block = memoryview(os.urandom(8 << 20))
    begin = time.perf_counter()
    with open(path, "wb", buffering=0) as file:
        left = size
        while left > 0:
            left -= file.write(block[: min(left, len(block))])
        os.fsync(file.fileno())
    seconds = time.perf_counter() - begin
    remove(path)
    return seconds


def convert(source, scratch, to, devices):
    samples = {device: [] for device in devices}
    outs = {device: scratch / f"{to}-{device}.safetensors" for device in devices}
    for _ in range(ROUNDS):
        for device, out in outs.items():
            remove(out)
            seconds_of_reading(source)
            command = [NIBBLE, "convert", source, out, "--to", to, "--device", device, "--progress", "none"]
            samples[device].append(timed(command))
    first = outs[devices[0]]
    equal = all(filecmp.cmp(first, out, shallow=False) for out in outs.values())
    size = source.stat().st_size
    stages = seconds_of_reading(source) + seconds_of_writing(scratch / "written", first.stat().st_size)
    for device in devices:
        walls = sorted(sample[0] for sample in samples[device])
        median = statistics.median(walls)
        line = {"name": f"convert/{to}/{device}", "unit": "s", "median": median, "samples": walls, "bytes": size,
                "written": first.stat().st_size, "gb_s": size / median / 1e9,
                "processor_s": statistics.median(sample[1] for sample in samples[device]),
                "peak_bytes": max(sample[2] for sample in samples[device]),
                "read_and_write_s": stages, "overlap": stages / median, "equal_bytes": equal}  # fmt: skip
        if device == "cuda":
            line["faster_than_cpu"] = statistics.median(sample[0] for sample in samples["cpu"]) / median
        if len(devices) > 1:
            print(json.dumps(line), flush=True)
    for out in outs.values():
        remove(out)
    return equal


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--scratch", type=pathlib.Path, required=True)
    parser.add_argument("--layers", type=int, default=4)
    options = parser.parse_args()
    scratch = options.scratch / "convert"
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        if kernels_gpu.gpus() == 0:
            source, devices = small_checkpoint(scratch / "input"), ("cpu",)
        else:
            source, devices = checkpoints.write(scratch / "input", options.layers, "fp32"), ("cpu", "cuda")
        equal = [convert(source, scratch, to, devices) for to in ("nf4", "int8")]
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if len(devices) == 1:
        print("no GPU: a small checkpoint was converted by the CPU")
        return kernels_gpu.NO_GPU
    return 0 if all(equal) else 1


if __name__ == "__main__":
    sys.exit(main())
