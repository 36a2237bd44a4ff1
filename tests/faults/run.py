#!/usr/bin/env python3
"""Lets every call of the system that nibble makes fail, one at a time, and kills it at every one of them.

Whatever happens, the output is the old one or the new one, whole. The exit code says which; nothing else is left in the
folder; the process never ends by a signal of its own making; and the run after a killed one succeeds, whether it resumes
that one or not. Until then, no manifest lies beside a file that it does not describe.

usage: tests/faults/run.py NIBBLE SHIM [--full]

Without --full a part of the faults is tried, the same at every run.
"""

import argparse
import concurrent.futures
import errno
import json
import math
import os
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import tempfile

# What fails, and how. Allocations are so many that some are drawn; so are stats.
FAULTS = {
    "readdir": errno.EIO, "getdents64": errno.EIO, "fdopendir": errno.EMFILE, "openat": errno.EIO, "stat": errno.EIO,
    "pread": errno.EIO, "pwrite": errno.ENOSPC, "fsync": errno.EIO, "ftruncate": errno.EIO, "fallocate": errno.ENOSPC,
    "rename": errno.EIO, "mkdir": errno.EIO, "unlink": errno.EIO, "chmod": errno.EIO, "flock": errno.EIO,
    "close": errno.EIO, "pthread_create": errno.EAGAIN, "malloc": errno.ENOMEM,
}  # fmt: skip
ALL = [f"renameat2 -1 {errno.EINVAL}", f"fallocate -1 {errno.EOPNOTSUPP}"]  # file systems that do not know these
HARMLESS = ["pread -1 short", "pwrite -1 short"]  # no reason to end
KILLS = ["openat", "pwrite", "fsync", "rename", "mkdir", "unlink", "chmod", "close"]
SAMPLE = 10  # of each scenario, call and fault, without --full; most calls are fewer

WORK = ".nibble"  # nibble's own directory in an output whose entries it replaces
CODES = {0, 2, 3, 4, 5, 6}


def tensors(seed):
    generator = random.Random(seed)
    return {
        f"model.layers.{i}.mlp.up_proj.weight": [generator.gauss(0, 1) for _ in range(64 * 64)] for i in range(2)
    }


def safetensors(seed):
    return safetensors_of({name: ([64, 64], values) for name, values in tensors(seed).items()})


def safetensors_of(tensors_):
    header, data = {}, b""
    for name, (shape, values) in tensors_.items():
        bytes_ = struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(bytes_)]}
        data += bytes_
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def write_model(folder, seed):
    (folder / "extra").mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(safetensors(seed))
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "tokenizer.json").write_text(f"tokens {seed}")
    (folder / "extra" / "note.txt").write_text(f"note {seed}")


def contents(path):
    """What is at a path: nothing, the bytes of a file, or those of all files in a folder by their names."""
    if path.is_dir():
        files = [p for p in sorted(path.rglob("*")) if p.is_file()]
        return {str(p.relative_to(path)): p.read_bytes() for p in files if WORK not in p.relative_to(path).parts}
    return path.read_bytes() if path.exists() else None


class Scenario:
    """A command line in a folder of its own, with what it finds there."""

    def __init__(self, name, arguments, outputs, prepare=lambda root: None):
        self.name, self.arguments, self.outputs, self._prepare = name, arguments, outputs, prepare
        self.new = None

    def prepare(self, root):
        write_model(root / "model", 1)
        (root / "w.safetensors").write_bytes(safetensors(1))
        self._prepare(root)

    def state(self, root):
        return {output: contents(root / output) for output in self.outputs}

    def is_honest(self, state, before):
        """Whether the manifest beside a file, if there is one, is that file's."""
        if self.outputs != FILE_OUTPUTS or state[FILE_OUTPUTS[1]] is None:
            return True
        return state in (before, self.new)


def old_directory(root):
    write_model(root / "out", 2)


def old_directory_with_remains(root):
    old_directory(root)
    (root / "out" / ".nibble").mkdir(mode=0o700)  # entries are replaced one by one then


def old_file(root):
    (root / "out.safetensors").write_bytes(safetensors(2))
    (root / "out.safetensors.nibble.json").write_text('{"schema_version": 1}')


def old_report(root):
    (root / "report.html").write_text('<meta name="generator" content="nibble measure">')


def old_directory_of_int8(root):
    """The input, too: bitsandbytes' rows of int8, two layers of them."""
    old_directory(root)
    header, data = {}, b""
    for i in range(2):
        module = f"model.layers.{i}.mlp.up_proj"
        for name, dtype, shape, part in (
            (f"{module}.weight", "I8", [64, 64], bytes(range(128)) * 32),
            (f"{module}.SCB", "F32", [64], struct.pack("<64f", *range(64))),
            (f"{module}.weight_format", "U8", [], bytes(1)),
        ):
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(part)]}
            data += part
    text = json.dumps(header).encode()
    (root / "int8").mkdir()
    (root / "int8" / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (root / "int8" / "config.json").write_text('{"quantization_config": {"quant_method": "bitsandbytes"}}')


def old_directory_and_adapter(root):
    """With DoRA, which reads the base twice."""
    old_directory(root)
    generator = random.Random(3)
    layer, trained = "base_model.model.model.layers.0.mlp.up_proj", {}
    for part, shape in (("lora_A.weight", [2, 64]), ("lora_B.weight", [64, 2]), ("lora_magnitude_vector", [64])):
        trained[f"{layer}.{part}"] = shape, [generator.gauss(0, 1) for _ in range(math.prod(shape))]
    (root / "adapter").mkdir()
    (root / "adapter" / "adapter_model.safetensors").write_bytes(safetensors_of(trained))
    (root / "adapter" / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 2, "use_dora": true}')


def statistics(root):
    """Of the inputs of the first layer, with second moments: 1 on the diagonal."""
    (root / "stats").mkdir()
    diagonal = [float(i % 65 == 0) for i in range(64 * 64)]
    (root / "stats" / "x.safetensors").write_bytes(safetensors_of({
        "x.mean_square": ([64], [1.0] * 64), "x.absmax": ([64], [1.0] * 64), "x.second_moment": ([64, 64], diagonal),
    }))  # fmt: skip
    (root / "stats" / "calibration.json").write_text(json.dumps({
        "format": "nibble.calibration", "version": 1, "second_moments": True,
        "inputs": {"x": {"columns": 64, "tokens": 1, "file": "x.safetensors"}},
        "weights": {"model.layers.0.mlp.up_proj.weight": ["x"]},
    }))  # fmt: skip


FILE_OUTPUTS = ["out.safetensors", "out.safetensors.nibble.json"]
SCENARIOS = [
    Scenario("new directory", ["convert", "model", "out", "--to", "nf4"], ["out"]),
    Scenario("replaced directory", ["convert", "model", "out", "--to", "nf4", "--overwrite"], ["out"], old_directory),
    Scenario("replaced entries", ["convert", "model", "out", "--to", "nf4", "--overwrite"], ["out"],
             old_directory_with_remains),
    Scenario("shards", ["convert", "model", "out", "--to", "int8", "--max-shard-size", "5kB", "--overwrite"], ["out"],
             old_directory),
    Scenario("new file", ["convert", "w.safetensors", "out.safetensors", "--to", "int8", "--calibration", "stats",
                          "--compensate"], FILE_OUTPUTS, statistics),
    Scenario("replaced file", ["convert", "w.safetensors", "out.safetensors", "--to", "nf4", "--absmax", "search",
                               "--overwrite"], FILE_OUTPUTS, old_file),
    Scenario("dequantized", ["dequantize", "int8", "out", "--to", "bf16", "--overwrite"], ["out"],
             old_directory_of_int8),
    Scenario("merged", ["merge", "model", "adapter", "out", "--to", "nf4", "--overwrite"], ["out"],
             old_directory_and_adapter),
    Scenario("replaced report", ["measure", "w.safetensors", "--to", "nf4", "--html", "report.html"], ["report.html"],
             old_report),
]  # fmt: skip


class Runner:
    def __init__(self, nibble, shim, full, folder):
        self.nibble, self.shim, self.full, self.folder = nibble, shim, full, folder
        self.number = 0

    def run(self, scenario, root, fault=None, count=None, overwrite=False, resume=False):
        environment = dict(os.environ, SOURCE_DATE_EPOCH="0")
        if fault is not None:
            environment |= {"LD_PRELOAD": str(self.shim), "NIBBLE_FAULT": fault}
        if count is not None:
            environment["NIBBLE_FAULT_COUNT"] = str(count)
        arguments = list(scenario.arguments)
        if overwrite and arguments[0] != "measure" and "--overwrite" not in arguments:
            arguments.append("--overwrite")
        if resume:
            arguments.append("--resume")
        return subprocess.run([self.nibble, *arguments, "--threads", "4", "--progress", "none"], cwd=root,
                              env=environment, capture_output=True, text=True, errors="replace", timeout=120,
                              check=False)  # fmt: skip

    def fresh(self, scenario):
        self.number += 1
        root = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        scenario.prepare(root)
        return root

    def count(self, scenario, call):
        root = self.fresh(scenario)
        ran = self.run(scenario, root, f"{call} 0 0", root / "count")
        assert ran.returncode == 0, ran.stderr
        number = int((root / "count").read_text())
        shutil.rmtree(root)
        return number

    def faults(self, scenario):
        """Pairs of a call, and what happens at which of them."""
        yield from ALL + HARMLESS
        for call, error in FAULTS.items():
            number = self.count(scenario, call)
            if number == 0:
                continue
            kinds = [error] + (["kill"] if call in KILLS else [])
            for kind in kinds:
                chosen = range(1, number + 1)
                if not self.full and number > SAMPLE:
                    chosen = sorted(random.Random(f"{scenario.name} {call} {kind}").sample(chosen, SAMPLE))
                yield from (f"{call} {k} {kind}" for k in chosen)

    @staticmethod
    def left(scenario, root, before):
        """What is there beside outputs and what was there."""
        found = set(os.listdir(root)) | ({WORK} if (root / "out" / WORK).exists() else set())
        return found - set(before) - set(scenario.outputs)

    def resume(self, scenario, fault):
        """What goes wrong where another run resumes the killed one. Not in a copy, whose files are others."""
        root = self.fresh(scenario)
        before = set(os.listdir(root))
        killed = self.run(scenario, root, fault)
        ran = self.run(scenario, root, overwrite=True, resume=True)
        left = self.left(scenario, root, before)
        if ran.returncode != 0:
            return [f"the run that resumes it, {killed.returncode}, ends with {ran.returncode}: {ran.stderr.strip()}"]
        if scenario.state(root) != scenario.new or left:
            return [f"the run that resumes it leaves something else, and {left}"]
        shutil.rmtree(root)
        return []

    def check(self, scenario, fault):
        """What went wrong, if anything did."""
        root = self.fresh(scenario)
        before, folder_before = scenario.state(root), sorted(os.listdir(root))
        folder_before += self.left(scenario, root, folder_before)
        try:
            ran = self.run(scenario, root, fault)
        except subprocess.TimeoutExpired:
            return [f"{scenario.name}: {fault}: hangs"]
        after, left = scenario.state(root), self.left(scenario, root, folder_before)
        problems = []
        # RE2 wonders about exceptions that pass through it.
        said = [line for line in ran.stderr.splitlines() if "re2/walker" not in line]
        # Memory that is missing in a destructor of a library, or a thread that is refused to one of oneTBB's, ends the
        # process at once: as if it had been killed.
        at_once = ("malloc", 5), ("pthread_create", 4)
        ended = any(fault.startswith(call) and ran.returncode == code for call, code in at_once)
        ended = ended and bool(left) and after == before
        if ended or (fault.endswith("kill") and ran.returncode == -9):
            if not scenario.is_honest(after, before):
                problems.append("a killed run leaves a manifest beside a file that it does not describe")
            if scenario.arguments[0] != "measure":
                problems += self.resume(scenario, fault)
            # A run that finishes what the killed one began, and can write nothing of its own.
            finished = self.run(scenario, root, "pwrite 1 28", overwrite=True)
            if finished.returncode not in CODES or scenario.state(root) not in (before, scenario.new):
                problems.append(f"the run that finishes it, {finished.returncode}, leaves neither old nor new")
            again = self.run(scenario, root, overwrite=True)
            if again.returncode != 0:
                problems.append(f"the next run ends with {again.returncode}: {again.stderr.strip()}")
            if scenario.state(root) != scenario.new:
                problems.append("the next run does not bring the new output")
            left = self.left(scenario, root, sorted(set(folder_before) - {WORK}))
            if left:
                problems.append(f"the next run leaves {left}")
        elif ran.returncode not in ({0} if fault in HARMLESS else CODES):
            problems.append(f"ends with {ran.returncode}: {ran.stderr.strip()}")
        elif ran.returncode == 0 and after != scenario.new:
            problems.append("says that all is done, but the output is not the new one")
        elif ran.returncode != 0 and after != before:
            problems.append(f"ends with {ran.returncode}, but the output is not as it was: {ran.stderr.strip()}")
        elif ran.returncode != 0 and len([line for line in said if not line.startswith("warning: ")]) != 1:
            problems.append(f"says more than one line: {ran.stderr!r}")
        # Where removing fails, something has to stay, and is said if the output is there; the next run clears it.
        if left and not problems and ran.returncode != -9 and not ended:
            removing = fault.startswith(("unlink", "getdents64", "rename", "openat", "stat"))
            if not removing or (ran.returncode == 0 and "could not be removed" not in ran.stderr):
                problems.append(f"ends with {ran.returncode} and leaves {left}")
        if not problems:
            shutil.rmtree(root)
        return [f"{scenario.name}: {fault}: {problem}" for problem in problems]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("nibble", type=pathlib.Path)
    parser.add_argument("shim", type=pathlib.Path)
    parser.add_argument("--full", action="store_true", help="try every fault")
    parser.add_argument("--only", default="", help="scenarios whose name contains this")
    parser.add_argument("--fault", help="this fault alone")
    options = parser.parse_args()
    failed = 0
    os.umask(0o002)  # as many have it: what is nibble's own must be so in spite of it
    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(options.nibble.resolve(), options.shim.resolve(), options.full, folder)
        for scenario in (s for s in SCENARIOS if options.only in s.name):
            root = runner.fresh(scenario)
            ran = runner.run(scenario, root)
            assert ran.returncode == 0, ran.stderr
            scenario.new = scenario.state(root)
            faults = [options.fault] if options.fault else list(runner.faults(scenario))
            with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
                for problems in pool.map(lambda fault, s=scenario: runner.check(s, fault), faults):
                    failed += bool(problems)
                    for problem in problems:
                        print(problem, flush=True)
            print(f"{scenario.name}: {len(faults)} faults")
    if failed:
        sys.exit(f"{failed} faults do harm")
    print("no fault does harm")


if __name__ == "__main__":
    main()
