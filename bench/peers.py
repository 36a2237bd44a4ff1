#!/usr/bin/env python3
"""The same operations in nibble and in torch and bitsandbytes, in memory, one thread each, in turns: a round is one
sample of every operation of nibble, then one of every operation of the peers.

    bench/peers.py [--python build/peers/bin/python] [--rounds 5] [--out bench/results/peers.jsonl]
"""

import argparse
import json
import pathlib
import re
import statistics
import subprocess

import in_memory
import record

# By their names in bench/programs/codecs.cpp. What nibble's build does not have is left out, and said.
OPERATIONS = [
    *(f"quantize/nf4{variant}/{dtype}" for variant in ("", "-no-double-quant") for dtype in ("float32", "bfloat16")),
    *(f"quantize/int8/{dtype}" for dtype in ("float16", "bfloat16", "float32")),
    *(f"encode/fp16/{dtype}" for dtype in ("float32", "bfloat16")),
    *(f"decode/nf4/{dtype}" for dtype in ("float32", "bfloat16")),
    "nested/encode",
]


class Peers:
    """bench/peers/operations.py in a process that waits for names."""

    def __init__(self, python):
        program = pathlib.Path(__file__).parent / "peers" / "operations.py"
        self.process = subprocess.Popen(
            [python, program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def measure(self, name):
        print(name, file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    record.add_options(parser, "peers")
    parser.add_argument("--python", type=pathlib.Path, default=record.PEERS, help="an interpreter with the peers")
    parser.add_argument("--filter", default=".", help="a regular expression for the operations")
    options = parser.parse_args()

    run = {**record.machine(options.build), **record.compiler(options.build)}
    run["peers"] = record.peer_versions(options.python)
    results = record.Results(options.out, {"bench": "bench/peers.py", **run})
    names = [name for name in OPERATIONS if re.search(options.filter, name)]
    pattern = "^(" + "|".join(names) + ")/in_memory"
    missing = {}
    peers = Peers(options.python)
    for _ in range(options.rounds):
        # The median of three, as the peers have run once before they are measured.
        ours = in_memory.rates(options.build, 3, pattern)
        for name in names:
            if f"{name}/in_memory" not in ours:
                missing[name] = "not in this build of bench_codecs"
                continue
            theirs = peers.measure(name)
            if "missing" in theirs:
                missing[name] = theirs["missing"]
                continue
            results.add(f"nibble/{name}", statistics.median(ours[f"{name}/in_memory"]) / 1e9, "GB/s")
            results.add(f"peer/{name}", theirs["bytes"] / theirs["seconds"] / 1e9, "GB/s")
    peers.close()
    results.run["missing"] = missing
    results.save()

    print(f"{'GB/s of weights, one thread':<40}{'nibble':>8}{'peer':>8}{'ratio':>8}")
    for name in names:
        if name in missing:
            print(f"{name:<40} left out: {missing[name]}")
            continue
        nibble, peer = (results.lines[f"{side}/{name}"]["median"] for side in ("nibble", "peer"))
        print(f"{name:<40}{nibble:>8.2f}{peer:>8.3f}{nibble / peer:>7.1f}x")


if __name__ == "__main__":
    main()
