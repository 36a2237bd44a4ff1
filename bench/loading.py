#!/usr/bin/env python3
"""Time to the first logits of a quantized directory, and the memory that takes: nibble.load() beside from_pretrained()
with bitsandbytes, in processes that take turns, with the files in the page cache.

    bench/loading.py [--layers 8] [--to nf4] [--tokens 16] [--rounds 5] [--build build/py]

The model has Llama-2-7B's layers and a vocabulary of 8000. NIBBLE_LIBRARY and NIBBLE_TORCH_LIBRARY name the libraries
of a build that is not installed.
"""

import argparse
import os
import pathlib

import checkpoints
import record

SCRIPT = record.ROOT / "bench/peers/loading.py"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    record.add_options(parser, "loading")
    parser.add_argument("--python", type=pathlib.Path, default=record.PEERS, help="the interpreter that has the peers")
    parser.add_argument("--dir", type=pathlib.Path, default=record.ROOT / "build/bench", help="for the models: 5 GB")
    parser.add_argument("--layers", type=int, default=8, help="[8]: 0.97 GB in NF4")
    parser.add_argument("--to", default="nf4")
    parser.add_argument("--tokens", type=int, default=16, help="of the first forward [16]")
    options = parser.parse_args()

    plain = options.dir / f"llama-{options.layers}-small-vocabulary"
    quantized = plain.with_name(f"{plain.name}-{options.to}")
    if not quantized.exists():
        checkpoints.write(plain, options.layers, "bf16", vocabulary=8000)
        record.output_of(
            options.build / "nibble", "convert", plain, quantized, "--to", options.to, "--progress", "none"
        )
    size = sum(file.stat().st_size for file in quantized.glob("*.safetensors"))

    run = record.host("bench/loading.py") | record.peer_versions(options.python)
    results = record.Results(options.out, run | {"directory_bytes": size, "tokens": options.tokens})
    os.environ.setdefault("PYTHONPATH", str(record.ROOT / "python"))
    for _ in range(options.rounds):
        for by in ("nibble", "bitsandbytes"):
            for file in quantized.glob("*.safetensors"):
                record.warm(file)
            facts = record.run([options.python, SCRIPT, by, quantized, "--tokens", options.tokens])
            results.add(f"{by}/first-logits", facts["seconds"])
            for part in ("load", "first_forward", "second_forward"):
                results.add(f"{by}/{part}", facts[f"{part}_s"])
            for part in ("peak_of_load", "own_of_load", "peak"):
                results.add(f"{by}/{part}", facts[f"{part}_bytes"] / size, unit="of the directory's bytes")
    results.save()

    print(f"{size / 1e9:.2f} GB, {options.tokens} tokens; least of {options.rounds} rounds")
    least = {name: min(line["samples"]) for name, line in results.lines.items()}
    for name in dict.fromkeys(name.partition("/")[2] for name in least):
        ours, theirs = least[f"nibble/{name}"], least[f"bitsandbytes/{name}"]
        print(f"{name:<16}{ours:>9.3f}{theirs:>9.3f}{theirs / ours:>8.2f} x")


if __name__ == "__main__":
    main()
