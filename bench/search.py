#!/usr/bin/env python3
"""The search for the absmax with the least error: its time and its error beside those of HQQ and bitsandbytes on the
same weights, and its error at every block size.

    cmake --preset release -DNIBBLE_BENCH=ON && cmake --build build/release --target nibble bench_stages
    bench/peers/quantizers.sh
    build/peers/bin/python bench/search.py [--rounds 3]

Weights are in bf16: normal numbers [4096, 4096], and the 36 matrices of MiniLM's layers. Blocks and groups are of 64.
All contenders take turns on one thread; a sample is processor time, of nibble's encoding alone (`bench_stages encode`)
and of the peers' functions. The errors are those of the weights as fp32, with HQQ's scale and zero rounded to fp16, as
HQQLinear keeps them. Without HQQ, its lines are left out. `bench/table.py --write docs/nf4.md` makes tables of the
results.
"""

import argparse
import ctypes
import importlib.util
import math
import pathlib
import sys
import tempfile
import time

import record

sys.path += [str(record.ROOT / "examples"), str(record.QUANTIZERS)]
import bitsandbytes.functional as bnb
import minilm
import safetensors.torch
import torch

BLOCKSIZE = 64
BLOCKSIZES = (32, 64, 128, 256, 512, 1024, 2048, 4096)
CHOICES = ("max", "search-positive", "search")
NIBBLE = {f"nibble, {choice}{name}": f"nf4:absmax={choice},double-quant={double_quant}"
          for double_quant, name in (("no", ""), ("yes", ", double quantization")) for choice in CHOICES}  # fmt: skip


def keep_memory():
    """Memory that is freed stays in the process. Otherwise page faults take two thirds of HQQ's time."""
    libc, m_mmap_max, m_trim_threshold = ctypes.CDLL(None), -4, -1
    libc.mallopt(m_mmap_max, 0)
    libc.mallopt(m_trim_threshold, 2**31 - 1)


def normal(dtype):
    return {"w.weight": torch.randn(4096, 4096, generator=torch.Generator().manual_seed(0)).to(dtype)}


def minilm_layers():
    weights = safetensors.torch.load_file(minilm.model_directory() / "model.safetensors")
    return {name: weight.bfloat16() for name, weight in weights.items()
            if name.startswith("encoder.layer.") and weight.dim() == 2}  # fmt: skip


class BitsAndBytes:
    def __init__(self, nested):
        self.nested = nested

    def quantize(self, weight):
        return bnb.quantize_4bit(weight, blocksize=BLOCKSIZE, compress_statistics=self.nested, quant_type="nf4")

    def decode(self, packed, state):
        state.dtype = torch.float32
        return bnb.dequantize_4bit(packed, state)

    def bytes(self, packed, state):
        return packed.nbytes + sum(part.nbytes for part in state.as_dict(packed=True).values())


class Hqq:
    """HQQ's grid of 16 equidistant values, with a scale and a zero for each group of weights in a row."""

    def __init__(self, solves):
        from hqq.core.quantize import Quantizer

        self.quantizer, self.solves = Quantizer, solves

    def quantize(self, weight):
        return self.quantizer.quantize(
            weight, nbits=4, group_size=BLOCKSIZE, axis=1, optimize=self.solves, device="cpu"
        )

    def decode(self, packed, meta):
        as_stored = {name: meta[name].half().float() for name in ("scale", "zero")}
        return self.quantizer.dequantize(packed, {**meta, **as_stored, "compute_dtype": torch.float32})

    def bytes(self, packed, meta):
        return packed.nbytes + sum(meta[name].half().nbytes for name in ("scale", "zero"))


def peers():
    """{name: a quantizer}"""
    found = {"bitsandbytes": BitsAndBytes(False), "bitsandbytes, double quantization": BitsAndBytes(True)}
    if not importlib.util.find_spec("hqq"):
        print("HQQ is left out: bench/peers/quantizers.sh has not been run")
        return found
    return found | {"HQQ without its solver": Hqq(solves=False), "HQQ": Hqq(solves=True)}


def errors_of(peer, weights):
    squares = magnitudes = count = size = 0
    for weight in weights.values():
        stored = peer.quantize(weight)
        error = (peer.decode(*stored) - weight.float()).double()
        squares += error.square().sum().item()
        magnitudes += error.abs().sum().item()
        count += weight.numel()
        size += peer.bytes(*stored)
    return {"rmse": math.sqrt(squares / count), "mae": magnitudes / count, "bits_per_weight": 8 * size / count}


def measured(build, file, codecs):
    """What `nibble measure` says of all weights in each of the codecs."""
    options = [word for codec in codecs for word in ("--to", codec)]
    tests = record.run([build / "nibble", "measure", file, *options, "--json"])["tests"]
    keys = ("rmse", "mae", "rel_rmse", "bits_per_weight")
    return [{key: test["quantized"][key] for key in keys} for test in tests]


def compare(results, options, source, weights, folder):
    file = folder / f"{source}.safetensors"
    safetensors.torch.save_file(weights, file)
    others = peers()
    errors = dict(zip(NIBBLE, measured(options.build, file, NIBBLE.values())))
    errors |= {name: errors_of(peer, weights) for name, peer in others.items()}
    size = sum(weight.nbytes for weight in weights.values())
    for _ in range(options.rounds):
        for name, codec in NIBBLE.items():
            took = record.stages(options.build, "encode", file, "--to", codec, "--threads", "1")
            results.add(f"{source}/{name}", took["processor_seconds"], bytes=took["bytes"], **errors[name])
        for name, peer in others.items():
            begin = time.process_time()
            for weight in weights.values():
                peer.quantize(weight)
            results.add(f"{source}/{name}", time.process_time() - begin, bytes=size, **errors[name])
    largest = errors["nibble, max"]["rmse"]
    print(f"{source:<46}{'ms':>9}{'GB/s':>9}{'RMSE':>8}{'bits':>8}")
    for name, error in errors.items():
        line = results.lines[f"{source}/{name}"]
        seconds = min(line["samples"])
        print(f"  {name:<44}{1e3 * seconds:>9.1f}{line['bytes'] / seconds / 1e9:>9.4f}{error['rmse'] / largest:>8.4f}"
              f"{error['bits_per_weight']:>8.3f}", flush=True)  # fmt: skip


def block_sizes(results, options, folder):
    file = folder / "fp32.safetensors"
    safetensors.torch.save_file(normal(torch.float32), file)
    for blocksize in BLOCKSIZES:
        codecs = [f"{codec}:absmax={choice},double-quant={double_quant}"
                  for codec in ("nf4", "fp4") for double_quant in ("no", "yes") for choice in CHOICES]  # fmt: skip
        sized = [f"{codec},block-size={blocksize}" for codec in codecs]
        for codec, error in zip(codecs, measured(options.build, file, sized)):
            rmse, bits = error["rel_rmse"], error["bits_per_weight"]
            results.add(f"block size {blocksize}/{codec}", rmse, "standard deviations", bits_per_weight=bits)
        print(f"block size {blocksize} is measured", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    record.add_options(parser, "search")
    options = parser.parse_args()
    keep_memory()
    torch.set_num_threads(1)
    run = {**record.machine(options.build), **record.compiler(options.build)}
    versions = record.peer_versions(sys.executable, record.QUANTIZERS)
    run["peers"] = {name: versions[name] for name in ("torch", "bitsandbytes", "hqq") if name in versions}
    results = record.Results(options.out, {"bench": "bench/search.py", **run})
    with tempfile.TemporaryDirectory() as folder:
        block_sizes(results, options, pathlib.Path(folder))
        for source, weights in (("minilm", minilm_layers()), ("normal", normal(torch.bfloat16))):
            compare(results, options, source, weights, pathlib.Path(folder))
    results.save()


if __name__ == "__main__":
    main()
