#!/usr/bin/env python3
"""Where the processor time of a conversion goes: samples of `perf record`, each attributed by the functions on its
stack to a stage of the pipeline, and how much of it is in stages that one thread does, or in locks.

    bench/profile_stages.py [--to nf4] [--type bf16] [--dir build/bench] [--out bench/results/profile.jsonl]

The first rule of STAGES that matches any function on the stack decides. Needs perf, and permission to sample the
kernel (kernel.perf_event_paranoid at most 1, or root); without, kernel time counts for the caller that is known.
The clock is sampled, not the cycle counter: virtual machines seldom have one. Time asleep (waiting for the disk or for
a lock) takes no samples; `asleep` says how much of threads x wall time it is. On a busy machine that includes waiting
for a processor.
"""

import argparse
import collections
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import checkpoints
import record

FREQUENCY = 999  # samples per second of processor time
SERIAL = "one thread: "
STAGES = [
    # Threads that do nothing but wait for the disk fall asleep and are woken, while no lock is held; now and then by
    # the thread that goes in order.
    ("threads for the disk", r"(?s)WriteBehind::wake|pthread_cond_wait.*WriteBehind::work"),
    # Waiting that burns time, in the library, the scheduler or the kernel: mutexes, futexes, and the lock of a file.
    ("locks", r"futex|pthread_mutex|lll_lock|rwsem_down|osq_lock|mutex_lock|queued_spin_lock_slowpath"),
    # A thread that has no batch to work on, since all wait for the disk, asks oneTBB for one again and again.
    ("out of work", r"sched_yield"),
    ("double quantization", r"start_for|start_reduce"),  # shared out, also where the stage itself is one thread's
    (SERIAL + "hash", r"(?s)XXH3.*Batch\*, void"),
    ("hash", r"XXH3_"),
    (SERIAL + "finish a tensor", r"Conversion::finish|Encoder::finish|nested::"),
    (SERIAL + "flush and commit", r"OutputFile::flush|fdatasync|fsync|::commit|Manifest::"),
    (SERIAL + "headers and plan", r"open_checkpoint|make_plan|conversion_memory|create_checkpoint|check_unchanged"),
    (SERIAL + "reserve space", r"OutputFile::reserve|fallocate"),  # on tmpfs this writes zeros, on a disk nothing
    (SERIAL + "begin a tensor", r"add_work|next_work|::encoder|stored_parts"),
    ("read", r"InputFile::read|Reader::read|pread64"),
    ("write", r"OutputFile::write_at|Writer::write|pwrite64"),
    ("error report", r"compare_blocks_\w+\(.*lambda|add_tile_errors|sum_changes|change_of_error|compare_squares"),
    ("encode", r"Encoder::encode|Encoder::scan|encode_four_bit|encode_blocks|nibble::.*N_[A-Z0-9_]+::|widen"),
    (SERIAL + "count and report", r"concrete_filter<nibble::\(anonymous namespace\)::Batch\*, void"),
    (SERIAL + "cut", r"concrete_filter<void, nibble::"),
    ("scheduler", r"libtbb"),
    ("start and end", r"ld-linux|execve|do_exit|exit_mm|_dl_|__libc_start"),
]


def stage_of(stack):
    for stage, pattern in STAGES:
        if re.search(pattern, stack):
            return stage
    return "other"


def samples(data):
    """The stacks of all samples: functions and libraries from the innermost on, a line each."""
    command = ["perf", "script", "-i", data, "-F", "comm,tid,time,ip,sym,dso", "--no-inline"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [sample for sample in text.split("\n\n") if sample.strip().startswith("nibble ")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    record.add_options(parser, "profile")
    parser.add_argument("--dir", type=pathlib.Path, default=record.ROOT / "build" / "bench", help="on the disk to use")
    parser.add_argument("--target", type=pathlib.Path, help="where the output goes [--dir]")
    parser.add_argument("--to", default="nf4")
    parser.add_argument("--type", default="bf16", choices=checkpoints.TYPES)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--layers", type=int, default=16, help="of the model; fewer for a trial [16: 8.6 GB]")
    parser.add_argument("--keep", action="store_true", help="leave the checkpoint for the next run")
    options = parser.parse_args()
    if shutil.which("perf") is None:
        sys.exit("skipped: there is no perf")

    directory = options.dir / f"llama-{options.layers}-{options.type}"
    source = checkpoints.write(directory, options.layers, options.type)
    out = (options.target or options.dir) / "nibble-bench-profile"
    command = [options.build / "nibble", "convert", directory, out, "--to", options.to, "--threads", options.threads]
    command += record.every_matrix(options.build, options.to)
    run = {**record.machine(options.build), **record.compiler(options.build)}
    run["conversion"] = f"{options.type} to {options.to}, {options.threads} threads"
    results = record.Results(options.out, {"bench": "bench/profile_stages.py", **run})
    with tempfile.TemporaryDirectory() as work:
        data = pathlib.Path(work) / "perf.data"
        perf = ["perf", "record", "-q", "-e", "cpu-clock", "-F", FREQUENCY, "--call-graph", "dwarf,8192", "-o", data]
        for _ in range(options.rounds):
            shutil.rmtree(out, ignore_errors=True)
            record.warm(source)
            # Without bench_stages between them, whose code perf takes for that of its child now and then.
            subprocess.run([*map(str, perf), "--", *map(str, command)], check=True, capture_output=True)
            shutil.rmtree(out)
            taken = samples(data)
            counts = collections.Counter(map(stage_of, taken))
            times = [float(re.search(r" (\d+\.\d+):", sample)[1]) for sample in taken]
            total = counts.total()
            for stage in [*(stage for stage, _ in STAGES), "other"]:
                results.add(stage, counts[stage] / total, "share")
            serial = sum(count for stage, count in counts.items() if stage.startswith(SERIAL))
            results.add("all that one thread does", serial / total, "share", samples_taken=total)
            busy = total / FREQUENCY
            available = options.threads * (max(times) - min(times))
            results.add("asleep", max(0, 1 - busy / available), "share of threads x time")
    if not options.keep:
        shutil.rmtree(directory)
    results.save()
    for name, line in results.lines.items():
        print(f"{name:<32}{line['median']:>7.1%}")


if __name__ == "__main__":
    main()
