#!/usr/bin/env python3
"""Whole conversions against `cp` and the peers, and against their own stages: processes in turns, page cache warm.

    bench/convert.py [--dir build/bench] [--python build/peers/bin/python] [--rounds 5] [--only main,flat,start,llama]

    main    1.07 billion weights as bf16 and fp32: cp + fsync, nibble, read, encode and write alone, and a script
            that goes through bitsandbytes tensor by tensor, half a minute each time
    flat    time per byte from 1 GB to 8 GB of bf16, and of writing alone
    start   from the start of the process to its first byte; `inspect` of 500,000 tensors
    llama   llama-quantize to Q4_0, every matrix, from the same model as GGUF, bf16 and fp32

Durable against durable: nibble flushes its output, so do cp, the peers and the stage that writes. Old outputs are
removed before a measurement starts, and the disk is settled (bench/record.py says why and how). Needs 28 GB of disk at
--dir, which are freed at the end unless --keep, and 16 GB of memory.
"""

import argparse
import os
import pathlib
import shutil
import subprocess

import checkpoints
import record
import table

PEER = pathlib.Path(__file__).parent / "peers" / "convert.py"
TO_GGUF = PEER.with_name("to_gguf.py")


class Bench:
    def __init__(self, options, results):
        self.options = options
        self.results = results
        self.dir = options.dir
        self.written = {}  # bytes, by the name of the measurement
        self.nibble = options.build / "nibble"

    def weights(self, layers, dtype):
        return checkpoints.write(self.dir / f"llama-{layers}-{dtype}", layers, dtype)

    def drop(self, layers, dtype):
        if not self.options.keep:
            shutil.rmtree(self.dir / f"llama-{layers}-{dtype}", ignore_errors=True)
            remove(self.dir / f"llama-{layers}-{dtype}.gguf")

    def time(self, command):
        return record.stages(self.options.build, "time", *command)

    def settle(self, size):
        record.settle(self.options.build, self.dir, size)

    def process(self, name, command, source, out=None, **extra):
        """One sample: a process, from its start to its end."""
        remove(out)
        record.warm(source)
        on_disk = out is not None and self.dir in out.parents
        # What a round has not shown yet is prepared for as for a copy of the input.
        self.settle(self.written.get(name, source.stat().st_size) if on_disk else 0)
        usage = self.time(command)
        written = self.written[name] = size_of(out)
        remove(out)
        self.results.add_process(name, usage, bytes=source.stat().st_size, written=written, **extra)
        return written

    def stage(self, name, *arguments):
        """One sample of a stage alone: the seconds it says itself, without its preparations."""
        self.settle(arguments[-1] if arguments[0] == "write" else 0)
        found = record.stages(self.options.build, *arguments)
        self.results.add(name, found["seconds"], bytes=found["bytes"])

    def flushed(self, name, command, source, out):
        """A process that leaves its output to the page cache, and a flush after it."""
        self.process(name, ["sh", "-c", 'out=$1; shift; "$@" && sync "$out"', "sh", out, *command], source, out)

    def copy(self, name, source):
        out = self.dir / "copy.safetensors"
        self.flushed(name, ["cp", "--reflink=never", source, out], source, out)

    def convert(self, name, source, to, whole=True, report=True):
        """The size of the output."""
        out = self.dir / "converted"
        command = [self.nibble, "convert", source.parent, out, "--to", to, "--progress", "none", "--threads", "2"]
        if not report:
            command += ["--error-report", "none"]
        if whole:  # as the peers' script does it
            command += record.every_matrix(self.options.build, to)
        return self.process(name, command, source, out)

    def main(self):
        layers = self.options.layers
        sources = {dtype: self.weights(layers, dtype) for dtype in ("bf16", "fp32")}
        peers = self.options.python.exists() and not self.options.without_peers
        if not peers:
            self.skip("the Python peers", "--without-peers, or python/peers.sh has not been run")
        for _ in range(self.options.rounds):
            for dtype, source in sources.items():
                self.copy(f"cp/{dtype}", source)
                self.convert(f"nibble/nf4-without-embeddings/{dtype}", source, "nf4", whole=False)
                self.convert(f"nibble/nf4-without-report/{dtype}", source, "nf4", report=False)
                record.warm(source)
                self.stage(f"read/{dtype}", "read", source)
                for to in ("nf4", "int8") if dtype == "bf16" else ("nf4", "fp16"):
                    written = self.convert(f"nibble/{to}/{dtype}", source, to)
                    whole = record.every_matrix_encoded(self.options.build, to)
                    self.stage(f"encode/{to}/{dtype}", "encode", source.parent, "--to", to, *whole)
                    self.stage(f"write/{to}/{dtype}", "write", self.dir, "--bytes", written)
                    if peers and to == "nf4":
                        out = self.dir / "peer.safetensors"
                        command = [self.options.python, PEER, source, out, "--to", to]
                        self.process(f"peer/{to}/{dtype}", command, source, out)
            self.results.save()

    def flat(self):
        multiples = {f"{size}GB": layers for size, layers in zip((1, 2, 4, 8), self.sizes())}
        sources = {size: self.weights(layers, "bf16") for size, layers in multiples.items()}
        for _ in range(self.options.rounds):
            for size, source in sources.items():
                written = self.convert(f"flat/convert/{size}", source, "nf4")
                self.stage(f"flat/write/{size}", "write", self.dir, "--bytes", written)

    def sizes(self):
        return [max(1, self.options.layers * multiple // 2) for multiple in (1, 2, 4, 8)]

    def start(self):
        # On tmpfs, where flushing costs nothing: the whole conversion bounds the time to the first byte from above.
        tiny = self.options.tmpfs / "nibble-bench-tiny.safetensors"
        many = self.dir / "many.safetensors"
        checkpoints.write_many(tiny, 1)
        checkpoints.write_many(many, 500_000)
        for _ in range(self.options.rounds):
            self.results.add_process("start/version", self.time([self.nibble, "--version"]))
            out = self.options.tmpfs / "nibble-bench-tiny-out.safetensors"
            self.process("start/convert", [self.nibble, "convert", tiny, out, "--to", "fp16"], tiny, out)
            self.results.add_process("start/inspect", self.time([self.nibble, "inspect", many]))
        for path in (tiny, many):
            remove(path)

    def llama(self):
        if self.options.without_peers or not (self.options.llama / "version").exists():
            self.skip("llama-quantize", "--without-peers, or bench/peers/llama.sh has not been run")
            return
        sources = {}
        for dtype in ("bf16", "fp32"):
            weights = self.weights(self.options.layers, dtype)
            sources[dtype] = weights.parent.with_suffix(".gguf")
            if not sources[dtype].exists():
                command = [self.options.llama / "bin" / "python", TO_GGUF, weights, sources[dtype]]
                subprocess.run(command, check=True)
        for _ in range(self.options.rounds):
            for name, source in (("q4_0", sources["bf16"]), ("q4_0/fp32", sources["fp32"])):
                out = self.dir / "peer.gguf"
                # --pure: otherwise the output layer becomes Q6_K, which takes longer than all the rest.
                command = [self.options.llama / "bin" / "llama-quantize", "--pure", source, out, "Q4_0", "2"]
                self.flushed(f"llama-quantize/{name}", command, source, out)
            self.results.save()

    def skip(self, what, why):
        self.results.run.setdefault("skipped", {})[what] = why
        print(f"skipped: {what}: {why}")


def remove(path):
    if path is None:
        return
    for one in (path, path.with_name(path.name + ".nibble.json")):  # the manifest beside a single file
        if one.is_dir():
            shutil.rmtree(one)
        else:
            one.unlink(missing_ok=True)


def size_of(path):
    if path is None:
        return None
    return sum(f.stat().st_size for f in path.glob("*.safetensors")) if path.is_dir() else path.stat().st_size


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    record.add_options(parser, "convert")
    parser.add_argument("--dir", type=pathlib.Path, default=record.ROOT / "build" / "bench", help="on the disk to use")
    parser.add_argument("--tmpfs", type=pathlib.Path, default="/dev/shm", help="a directory in memory [/dev/shm]")
    parser.add_argument("--python", type=pathlib.Path, default=record.PEERS, help="an interpreter with the peers")
    parser.add_argument("--llama", type=pathlib.Path, default=record.LLAMA, help="where llama-quantize was built")
    parser.add_argument("--without-peers", action="store_true", help="nibble, cp and the stages only")
    parser.add_argument("--layers", type=int, default=4, help="of the model; fewer for a trial [4]")
    parser.add_argument("--only", default="main,flat,start,llama", help="sections, separated by commas")
    parser.add_argument("--keep", action="store_true", help="leave the checkpoints for the next run")
    options = parser.parse_args()

    options.dir.mkdir(parents=True, exist_ok=True)
    run = {**record.machine(options.build), "file_system": record.file_system(options.dir)}
    run |= {**record.disk_rates(options.dir), **record.compiler(options.build)}
    if options.python.exists():
        run["peers"] = record.peer_versions(options.python)
    if (options.llama / "version").exists():
        run.setdefault("peers", {})["llama-cpp-python"] = (options.llama / "version").read_text().strip()
    results = record.Results(options.out, {"bench": "bench/convert.py", "layers": options.layers, **run})
    bench = Bench(options, results)
    try:
        for section in options.only.split(","):
            getattr(bench, section)()
            results.save()
    finally:
        for layers in {options.layers, *bench.sizes()}:
            for dtype in checkpoints.TYPES:
                bench.drop(layers, dtype)
    table.print_targets({options.out.stem: results.lines})


if __name__ == "__main__":
    main()
