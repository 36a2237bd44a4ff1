#!/usr/bin/env python3
"""How a conversion scales to more cores than the machine has: a model with measured costs, checked where it can be.

    bench/scaling.py [--dir build/bench] [--memory 200] [--rounds 5] [--out bench/results/scaling.jsonl]

Per byte of input, with `o` bytes of output, a conversion takes at least the largest of

    work      (read + encode + o (hash + write)) / threads     processor seconds, measured on one thread
    serial    o append + in order + finish / threads           the pipeline's last stage; finish is shared out among 16
    memory    (1 + o) / bandwidth                              page cache read; buffers fetched by the disk
    disk      o / rate                                         durable output; the input is in the page cache

Chunks and their results stay in cache between the stages, so they cost no memory bandwidth. Up to the machine's own
cores its measured bandwidth counts, beyond them that of --memory. The check: conversions to this disk with one thread
and with as many as there are cores.
"""

import argparse
import os
import pathlib
import shutil
import statistics

import checkpoints
import record

CASES = {"nf4/bf16": "nf4", "nf4/fp32": "nf4", "int8/bf16": "int8", "fp16/fp32": "fp16"}
THREADS = (1, 2, 8, 32, 128)
THIS_DISK = "this disk"
SHARED_OUT = 16  # threads that finish a tensor together, at most (FourBitEncoder::piece_groups)
WRITTEN = 500_000_000  # bytes: what a conversion of 1 GB in bf16 to int8 writes


class Costs:
    """Medians of measured times, by name."""

    def __init__(self, options):
        self.options = options
        self.samples = {}

    def stage(self, name, *arguments, field="seconds", per="bytes"):
        found = record.stages(self.options.build, *arguments)
        self.samples.setdefault(name, []).append(found[field] / found[per])
        return found

    def __getitem__(self, name):
        return statistics.median(self.samples[name])

    def measure(self, sources, cores):
        """One sample of each, in seconds per byte."""
        one = ("--threads", "1")
        both = ("--threads", str(cores))
        for case, to in CASES.items():
            dtype = case.split("/")[1]
            whole = record.every_matrix_encoded(self.options.build, to)
            found = self.stage(f"encode/{case}", "encode", sources[dtype].parent, "--to", to, *whole, *one)
            for name, field in (("finish", "finish_seconds"), ("in order", "in_order_seconds")):
                self.samples.setdefault(f"{name}/{case}", []).append(found[field] / found["bytes"])
            self.samples.setdefault(f"output/{case}", []).append(found["stored"] / found["bytes"])
        for dtype, source in sources.items():
            record.warm(source)
            self.stage(f"read/{dtype}", "read", source, *one)
        found = self.stage("hash", "hash")
        self.samples.setdefault("append", []).append(found["append_seconds"] / found["bytes"])
        self.stage("memory", "memory", *both)
        record.settle(self.options.build, self.options.dir, WRITTEN)
        # Threads that only wait for the disk write: what they take of a processor is work.
        found = self.stage("write", "write", self.options.dir, "--bytes", WRITTEN, field="processor_seconds")
        self.samples.setdefault("disk", []).append(found["seconds"] / found["bytes"])


def bounds(costs, case, threads, memory, disk):
    """{what binds: seconds per byte of input}"""
    dtype = case.split("/")[1]
    output = costs[f"output/{case}"]
    in_order, finish = costs[f"in order/{case}"], costs[f"finish/{case}"]
    work = costs[f"read/{dtype}"] + costs[f"encode/{case}"] + output * (costs["hash"] + costs["write"])
    return {
        "work": work / threads,
        "serial": output * costs["append"] + in_order + (finish - in_order) / min(threads, SHARED_OUT),
        "memory": (1 + output) / memory,
        "disk": output / disk,
    }


def check(options, costs, sources, cores):
    """Conversions, in turns: {(case, threads): median seconds per byte}"""
    samples = {}
    out = options.dir / "nibble-bench-scaling"
    for _ in range(options.rounds):
        for case, to in CASES.items():
            source = sources[case.split("/")[1]]
            for threads in sorted({1, cores}):
                shutil.rmtree(out, ignore_errors=True)
                record.warm(source)
                record.settle(options.build, options.dir, int(source.stat().st_size * costs[f"output/{case}"]))
                words = [options.build / "nibble", "convert", source.parent, out, "--to", to, "--threads", threads]
                words += ["--error-report", "none", *record.every_matrix(options.build, to)]
                usage = record.stages(options.build, "time", *words)
                shutil.rmtree(out)
                samples.setdefault((case, threads), []).append(usage["seconds"] / source.stat().st_size)
    return {key: statistics.median(values) for key, values in samples.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    record.add_options(parser, "scaling")
    parser.add_argument("--dir", type=pathlib.Path, default=record.ROOT / "build" / "bench", help="on the disk to use")
    parser.add_argument("--memory", type=float, default=200, help="GB/s of the larger machine [200: 8 x DDR4-3200]")
    parser.add_argument("--nvme", type=float, default=7, help="GB/s that one fast disk writes [7]")
    parser.add_argument("--raid", type=float, default=28, help="GB/s that several write together [28]")
    parser.add_argument("--layers", type=int, default=4, help="of the model; fewer for a trial [4]")
    parser.add_argument("--keep", action="store_true", help="leave the checkpoints for the next run")
    options = parser.parse_args()

    options.dir.mkdir(parents=True, exist_ok=True)
    cores = len(os.sched_getaffinity(0))
    directories = {dtype: options.dir / f"llama-{options.layers}-{dtype}" for dtype in checkpoints.TYPES}
    sources = {dtype: checkpoints.write(path, options.layers, dtype) for dtype, path in directories.items()}
    rates = record.disk_rates(options.dir)
    run = {**record.machine(options.build), **rates, **record.compiler(options.build)}
    results = record.Results(options.out, {"bench": "bench/scaling.py", "memory_gb_s": options.memory, **run})
    costs = Costs(options)
    for _ in range(options.rounds):
        costs.measure(sources, cores)
    for name, samples in costs.samples.items():
        for sample in samples:
            if name.startswith("output/"):
                results.add(f"cost/{name}", sample, "bytes per byte")
            else:
                results.add(f"cost/{name}", sample * 1e9, "ns per byte")

    disks = {"nvme": options.nvme, "raid": options.raid, THIS_DISK: 1e-9 / costs["disk"]}
    measured = check(options, costs, sources, cores)
    if not options.keep:
        for path in directories.values():
            shutil.rmtree(path)
    print(f"{'GB/s of input':<22}" + "".join(f"{threads:>15}" for threads in THREADS))
    for case in CASES:
        for disk, rate in disks.items():
            cells = ""
            for threads in THREADS:
                memory = 1 / costs["memory"] if threads <= cores else options.memory * 1e9
                found = bounds(costs, case, threads, memory, rate * 1e9)
                bound = max(found, key=found.get)
                gb_s = 1 / found[bound] / 1e9
                extra = {}
                if disk == THIS_DISK and (case, threads) in measured:
                    extra["measured"] = 1 / measured[case, threads] / 1e9
                    extra["error"] = gb_s / extra["measured"] - 1
                results.add(f"{case}/{disk}/{threads}", gb_s, "GB/s", bound=bound, **extra)
                cells += f"{f'{gb_s:.1f} {bound}':>15}"
            print(f"{f'{case}, {disk}':<22}{cells}")
    results.save()
    print("\nchecked              threads  predicted  measured   error")
    for case, threads in measured:
        line = results.lines[f"{case}/{THIS_DISK}/{threads}"]
        print(f"{case:<20}{threads:>8}{line['median']:>11.2f}{line['measured']:>10.2f}{line['error']:>+8.0%}")


if __name__ == "__main__":
    main()
