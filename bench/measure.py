#!/usr/bin/env python3
"""`nibble measure` against the conversion that it judges, and against a script: processes in turns, page cache warm.

    bench/measure.py [--dir build/bench] [--python build/peers/bin/python] [--rounds 5]
    bench/measure.py --reports --rounds 15 --out bench/results/error_report.jsonl
    bench/measure.py --reports --rounds 15 --out bench/results/error_report_memory.jsonl --dir /dev/shm --layers 2

1.07 billion weights as bf16, and what `nibble convert --to nf4` makes of them with its own defaults (the conversion is
durable, measuring writes nothing). Three formats by --to against one. The script (bench/peers/measure.py) has torch and
bitsandbytes do the same sums, and its figures are compared with ours before anything is timed. Needs 5 GB of disk at
--dir, which are freed at the end unless --keep, and 8 GB of memory for the script.

--reports times conversions with their error report (the default) and without it, one right after the other, and prints
the median of the ratios of such pairs; the first of a pair is in turn the one and the other. In memory (--dir on tmpfs)
the disk has no part in it.
"""

import argparse
import math
import pathlib
import shutil
import subprocess
import sys

import checkpoints
import record

PEER = pathlib.Path(__file__).parent / "peers" / "measure.py"
FORMATS = ("nf4", "fp4", "int8")
WHOLE = ("--embeddings", "nf4", "--lm-head", "nf4", "--no-default-skips", "--allow-nibble-only")
REPORTS = {
    "nf4": ("--to", "nf4", *WHOLE),
    "nf4/no-double-quant": ("--to", "nf4", "--no-double-quant", *WHOLE),
    "int8": ("--to", "int8"),
    "fp16": ("--to", "fp16"),
}
FIGURES = ("mae", "rmse", "max_abs", "cosine", "sqnr_db")
# fp32 sums of torch, and products that it rounds in another order
TOLERANCE = 1e-4


class Bench:
    def __init__(self, options, results):
        self.options = options
        self.results = results
        self.nibble = [options.build / "nibble"]
        self.source = checkpoints.write(options.dir / f"llama-{options.layers}-bf16", options.layers, "bf16")
        self.test = options.dir / "measured"
        self.out = options.dir / "converted"
        self.in_memory = record.file_system(options.dir).startswith("tmpfs")
        remove(self.test)
        subprocess.run(self.convert(self.test), check=True, capture_output=True)
        self.tested = self.test / self.source.name
        self.commands = {
            "convert/nf4": self.convert(self.out),
            "convert/nf4/without-report": [*self.convert(self.out), "--error-report", "none"],
            "measure/nf4": self.measure(self.test),
            "measure/to-nf4": self.measure("--to", "nf4"),
            "measure/to-three": self.measure(*(word for format in FORMATS for word in ("--to", format))),
        }
        if options.reports:
            self.commands = {}
            for name, to in REPORTS.items():
                self.commands[f"convert/{name}"] = self.convert(self.out, *to)
                self.commands[f"convert/{name}/without-report"] = self.convert(self.out, *to, "--error-report", "none")
        elif options.python.exists() and not options.without_peers:
            self.commands["peer/measure/nf4"] = [options.python, PEER, self.source, self.tested]
        else:
            self.results.run["skipped"] = "the script: --without-peers, or python/peers.sh has not been run"

    def convert(self, out, *to):
        to = to or ("--to", "nf4")
        return [*self.nibble, "convert", self.source.parent, out, *to, "--progress", "none", "--threads", "2"]

    def measure(self, *what):
        return [*self.nibble, "measure", self.source.parent, *what, "--progress", "none", "--threads", "2"]

    def check(self):
        """The script and nibble have to say the same before it matters which of them is faster."""
        if "peer/measure/nf4" not in self.commands:
            return
        theirs = record.run(self.commands["peer/measure/nf4"])
        ours = record.run([*self.commands["measure/nf4"], "--json"])["tests"][0]["total"]
        for figure in FIGURES:
            if not math.isclose(ours[figure], theirs[figure], rel_tol=TOLERANCE):
                sys.exit(f"error: {figure} is {ours[figure]}, by the script {theirs[figure]}")

    def round(self, number=0):
        names = list(self.commands)
        if self.options.reports and number % 2 == 1:
            names = [name for first in range(0, len(names), 2) for name in (names[first + 1], names[first])]
        for name in names:
            command = self.commands[name]
            remove(self.out)
            record.warm(self.source)
            if name in ("measure/nf4", "peer/measure/nf4"):
                record.warm(self.tested)
            writes = self.source.stat().st_size if name.startswith("convert") and not self.in_memory else 0
            record.settle(self.options.build, self.options.dir, writes)
            usage = record.stages(self.options.build, "time", *command)
            self.results.add_process(name, usage, bytes=self.source.stat().st_size)
        remove(self.out)

    def print_ratios(self):
        for name in REPORTS if self.options.reports else ():
            wall, cpu = record.report_ratios(self.results.lines, f"convert/{name}")
            print(f"{name} with its error report over without: {wall:.2f} of the time, {cpu:.2f} of processor time")
        median = {name: line["median"] for name, line in self.results.lines.items()}
        for what, over, under in (
            ("measuring NF4 over converting to it", "measure/nf4", "convert/nf4"),
            ("measuring what --to nf4 would write over converting", "measure/to-nf4", "convert/nf4"),
            ("three formats by --to over one", "measure/to-three", "measure/to-nf4"),
            ("the script over measuring", "peer/measure/nf4", "measure/nf4"),
        ):
            if over in median:
                print(f"{what}: {median[over]:.3g} s / {median[under]:.3g} s = {median[over] / median[under]:.2f}")

    def close(self):
        for path in (self.test, self.out):
            remove(path)
        if not self.options.keep:
            remove(self.source.parent)


def remove(path):
    shutil.rmtree(path, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    record.add_options(parser, "measure")
    parser.add_argument("--dir", type=pathlib.Path, default=record.ROOT / "build" / "bench", help="on the disk to use")
    parser.add_argument("--python", type=pathlib.Path, default=record.PEERS, help="an interpreter with the peers")
    parser.add_argument("--without-peers", action="store_true", help="nibble only")
    parser.add_argument("--reports", action="store_true", help="only what the error report of a conversion costs")
    parser.add_argument("--layers", type=int, default=4, help="of the model; fewer for a trial [4]")
    parser.add_argument("--keep", action="store_true", help="leave the checkpoint for the next run")
    options = parser.parse_args()

    options.dir.mkdir(parents=True, exist_ok=True)
    run = {**record.machine(options.build), "file_system": record.file_system(options.dir)}
    run |= record.compiler(options.build)
    if options.python.exists():
        run["peers"] = record.peer_versions(options.python)
    results = record.Results(options.out, {"bench": "bench/measure.py", "layers": options.layers, **run})
    bench = Bench(options, results)
    try:
        bench.check()
        for number in range(options.rounds):
            bench.round(number)
            results.save()
        bench.print_ratios()
    finally:
        bench.close()


if __name__ == "__main__":
    main()
