#!/usr/bin/env python3
"""Every codec in memory: runs bench_codecs, whose repetitions alternate, and adds to each rate its share of memcpy and
of the read bandwidth for the same size in the same run.

    bench/in_memory.py [--filter REGEX] [--cpu-target AVX2] [--rounds 5] [--out bench/results/codecs.jsonl]
"""

import argparse
import json
import os
import subprocess
import tempfile

import record


def rates(build, rounds, pattern=".", min_time=0.1):
    """{name: [bytes per second, one per repetition]}"""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [build / "bench" / "bench_codecs", f"--benchmark_filter={pattern}"]
        command += [f"--benchmark_min_time={min_time}", f"--benchmark_repetitions={rounds}"]
        command += ["--benchmark_enable_random_interleaving=true", f"--benchmark_out={file.name}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        found = {}
        for line in json.load(file)["benchmarks"]:
            if line["run_type"] == "iteration":
                name = line["run_name"].removesuffix("/real_time").split("/repeats:")[0]
                found.setdefault(name, []).append(line["bytes_per_second"])
        return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    record.add_options(parser, "codecs")
    parser.add_argument("--filter", default=".", help="a regular expression; memcpy and read always run")
    parser.add_argument("--min-time", type=float, default=0.1, help="seconds per repetition, at least [0.1]")
    parser.add_argument("--cpu-target", help="instead of the best that the processor has: `nibble formats` lists them")
    options = parser.parse_args()
    if options.cpu_target:
        os.environ["NIBBLE_CPU_TARGET"] = options.cpu_target

    results = record.Results(
        options.out, {"bench": "bench/in_memory.py", **record.machine(options.build), **record.compiler(options.build)}
    )
    pattern = f"^memcpy|^read|{options.filter}"
    for name, samples in rates(options.build, options.rounds, pattern, options.min_time).items():
        for sample in samples:
            results.add(name, sample / 1e9, "GB/s")
    for name, line in results.lines.items():
        size = os.path.basename(name)
        for limit in ("memcpy", "read"):
            line[f"share_of_{limit}"] = line["median"] / results.lines[f"{limit}/{size}"]["median"]
    results.save()

    print(f"{'GB/s of weights, one thread':<48}{'median':>8}{'of memcpy':>11}{'of read':>9}")
    for name, line in sorted(results.lines.items()):
        print(f"{name:<48}{line['median']:>8.2f}{line['share_of_memcpy']:>10.0%}{line['share_of_read']:>9.0%}")


if __name__ == "__main__":
    main()
