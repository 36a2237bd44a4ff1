#!/usr/bin/env python3
"""Runs a part of kernels_parts.py: one process a step, each with its limit, so that a step that hangs or crashes
costs itself only. Needs Python's standard library alone.

    kernels_run.py FOLDER PART [options]      FOLDER is what `bench/kernels.sh build` made

Everything is written as it comes, to the folder --out (OUT, or else bench/results); the lines of steps that run together
when each of these steps ends:

    PART.jsonl        a line for the run; each line of JSON that a program prints, with its step; a line for each step:
                      its status, exit code and seconds
    PART.log          what else programs print; a step with a file of its own (tests.txt) has it in PART_tests.txt
    PART_clocks.csv   clocks, power and temperature, every two seconds

A step's status is one of `ok`, `failed` (it ended with an error), `crashed` (by a signal), `time limit`, `no GPU`,
`left out` (a tool or a peer is not there), `no time left`, and `device lost` (nothing could be done on the GPU any
more). FOLDER/state/PART.jsonl has the steps that were tried: the same command goes on where it stopped, and begins with
what it had not reached. --after takes such lines from the results of another machine.

0: all steps are ok, left out or without a GPU. 1: not so. 2: wrong usage.
"""

import argparse
import concurrent.futures
import dataclasses
import datetime
import glob
import importlib.util
import itertools
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import kernels_parts
from kernels_gpu import NO_GPU, NOT_THERE
from kernels_lines import File, json_object, names_in, read_lines
from kernels_process import end, prepare_child, run_process

TRIED = {"ok", "failed", "crashed", "time limit", "left out"}  # another run does not repeat these
GOOD = {"ok", "left out", "no GPU"}
MIN_SECONDS = 10  # a step is not begun with less than this, unless its limit is less
LIST_LIMIT = 20  # seconds in which a program lists its names, or the device answers


def cuda_folders():
    """Folders of CUDA's libraries that Python packages brought: cuBLASLt, and what bitsandbytes needs."""
    pattern = "nvidia/*/lib/libcu*.so.1[23]"
    return sorted({str(lib.parent) for path in sys.path if path for lib in pathlib.Path(path).glob(pattern)})


def find_bitsandbytes(folder):
    """The library for the first minor version of the newest major version of CUDA, which runs with all later ones: in
    the folder or where Python finds the package; or None."""
    folders = [folder / "python" / "bitsandbytes"]
    spec = importlib.util.find_spec("bitsandbytes")
    if spec and spec.origin:
        folders.append(pathlib.Path(spec.origin).parent)
    for candidate in folders:
        found = sorted(candidate.glob("libbitsandbytes_cuda*.so"))
        if found:
            return min(path for path in found if path.stem[:-1] == found[-1].stem[:-1])
    return None


def environment(folder):
    env = dict(os.environ)
    libraries = [str(folder / "lib"), *cuda_folders(), env.get("LD_LIBRARY_PATH", ""), "/usr/local/cuda/lib64"]
    env["LD_LIBRARY_PATH"] = ":".join(path for path in libraries if path)
    tools = ["/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer", *glob.glob("/opt/nvidia/nsight-compute/*")]
    env["PATH"] = ":".join([env.get("PATH", ""), *tools])
    env["PYTHONPATH"] = ":".join(path for path in (str(folder / "python"), env.get("PYTHONPATH", "")) if path)
    env.update(PYTHONUNBUFFERED="1", PYTHONDONTWRITEBYTECODE="1")
    for name in ("", "_torch", "_cuda"):
        env[f"NIBBLE{name.upper()}_LIBRARY"] = str(folder / "lib" / f"libnibble{name}.so")
    return env


class Runner:
    def __init__(self, folder, part, out, *, seconds=470, jobs=1, scratch=None, cublaslt=None,
                 bitsandbytes=None):  # fmt: skip
        self.folder, self.part, self.out = folder, part, out
        self.deadline = time.monotonic() + seconds
        self.jobs = jobs
        self.lock = threading.RLock()  # of all that steps that run together write
        self.stopping = threading.Event()
        self.scratch = scratch or folder / "scratch"
        self.cublaslt, self.bitsandbytes = cublaslt, bitsandbytes
        self.env = environment(folder)
        commit = folder / "commit"
        self.commit = commit.read_text().strip() if commit.is_file() else "unknown"
        self.state_path = folder / "state" / f"{part}.jsonl"
        self.tried, self.interrupted = set(), set()
        self.summary, self.logs = [], {}
        self.has_device = self.lost = False
        for path in (out, self.scratch, self.state_path.parent):
            path.mkdir(parents=True, exist_ok=True)
        self.results = File(out / f"{part}.jsonl")

    # -- where the part stopped

    def load_state(self, afresh, after):
        lines = [] if afresh else list(read_lines(self.state_path))
        if not lines or lines[0].get("commit") != self.commit:
            self.state_path.write_text(json.dumps({"commit": self.commit}) + "\n")
            lines = []
        for path in after:
            lines += read_lines(path)
        begun = {line["begun"] for line in lines if "begun" in line}
        steps = [line for line in lines if line.get("kind") == "step"]
        self.tried = {line["step"] for line in steps if line["status"] in TRIED}
        self.interrupted = begun - {line["step"] for line in steps}

    def save_state(self, line):
        with open(self.state_path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    # -- words of commands

    def program(self, word):
        """The words that start a program, or None if there is none of that name."""
        path = self.folder / word
        if path.suffix == ".py" and path.is_file():
            return (sys.executable, path)
        for path in (self.folder / "bin" / word, pathlib.Path(word)):
            if os.access(path, os.X_OK) and path.is_file() and "/" in str(path):
                return (path,)
        found = shutil.which(word, path=self.env["PATH"])
        return (found,) if found else None

    def filled(self, words):
        lists = {
            "{bitsandbytes}": ("--bitsandbytes", str(self.bitsandbytes)) if self.bitsandbytes else (),
            "{cublaslt}": ("--cublaslt", str(self.cublaslt)) if self.cublaslt else (),
            "{out}": (str(self.out),),
            "{scratch}": (str(self.scratch),),
        }
        return [inner for word in words for inner in lists.get(word, (word,))]

    # -- output

    def log(self, name):
        if name not in self.logs:
            self.logs[name] = File(self.out / (f"{self.part}_{name}" if name else f"{self.part}.log"))
        return self.logs[name]

    def note(self, line):
        self.results.write(json.dumps(line), always=True)

    def finish(self, step, status, seconds=0.0, **more):
        line = {"kind": "step", "step": step.name, "status": status, "seconds": round(seconds, 2), **more}
        with self.lock:
            self.note(line)
            self.save_state(line)
            self.summary.append((step.name, status, seconds))
            print(f"{seconds:8.1f} s  {status:12}  {step.name}", flush=True)

    # -- steps

    def call(self, command, limit, log=None):
        """(exit status, ended, JSON objects, other lines), for what asks instead of measuring."""
        objects, texts = [], []

        def take(line):
            value = json_object(line)
            (texts if value is None else objects).append(line if value is None else value)

        status, ended = run_process(command, limit, self.env, take, log or texts.append,
                                    self.stopping)  # fmt: skip
        return status, ended, objects, texts

    def device_answers(self):
        program = self.program("bench_kernels")
        if program is None:
            return None
        return self.call((*program, "--find"), LIST_LIMIT)[0]

    def expanded(self, steps):
        """The steps, with one for each name where a program lists them."""
        for step in steps:
            if not step.names:
                yield step
                continue
            program = self.program(step.command[0])
            names, status = [], None
            if program:
                status, _, _, texts = self.call((*program, *step.names), LIST_LIMIT)
                names = names_in(texts) if status == 0 else []
            if not names:
                group = dataclasses.replace(step, name=step.name.split("/")[0])
                if step.name not in self.tried:
                    self.finish(group, "failed", exit=status, why=f"{step.command[0]} {step.names[0]} names nothing")
            for name in names:
                words = tuple(word.replace("{name}", name) for word in step.command)
                yield dataclasses.replace(step, name=step.name.replace("{name}", name), command=words)

    def run_step(self, step):
        program = self.program(step.command[0])
        if program is None:
            if not self.has_device and not step.optional:
                return self.finish(step, "no GPU", why=f"and no {step.command[0]}")
            return self.finish(step, "left out", why=f"there is no {step.command[0]}")
        command = [*program, *self.filled(step.command[1:])]
        if step.tool and self.has_device:
            tool = self.program(step.tool[0])
            if tool is None:
                return self.finish(step, "left out", why=f"there is no {step.tool[0]}")
            command = [*tool, *step.tool[1:], *command]
        left = self.deadline - time.monotonic()
        if left < min(step.limit, MIN_SECONDS):
            return self.finish(step, "no time left")
        if self.lost and not self.found_again():
            return self.finish(step, "device lost")

        with self.lock:
            self.save_state({"begun": step.name})
            log = self.log(step.log)
        last = [""]
        held = []  # (file, line) of a step that runs together with others: its lines come in one piece when it ends

        def write(file, line):
            if step.together:
                held.append((file, line))
            else:
                file.write(line)

        def take_text(line):
            last[0] = line or last[0]
            write(log, line)

        def take_output(line):
            value = json_object(line)
            if value is None:
                take_text(line)
            else:
                write(self.results, json.dumps({"step": step.name, **value}))

        def begin_step():
            log.begin_step()
            self.results.begin_step()
            log.write(f"== {step.name}: {' '.join(map(str, command))}", always=True)

        if not step.together:
            begin_step()
        begin = time.monotonic()
        limit = min(step.limit, left)
        status, ended = run_process(command, limit, self.env, take_output, take_text, self.stopping)
        seconds = time.monotonic() - begin
        with self.lock:
            if step.together:
                begin_step()
                for file, line in held:
                    file.write(line)
            if not self.stopping.is_set():
                self.judge(step, status, ended, seconds, limit, last[0])

    def run_together(self, steps):
        """Runs up to `jobs` of the steps at a time."""
        with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            try:
                for done in [pool.submit(self.run_step, step) for step in steps]:
                    done.result()
            except BaseException:
                self.stopping.set()  # which ends the processes that the pool waits for
                pool.shutdown(cancel_futures=True)
                raise

    def judge(self, step, status, ended, seconds, limit, last):
        more = {"exit": status}
        if status == 0:
            text = "ok"
        elif status == NO_GPU:
            text = "no GPU"
        elif status == NOT_THERE:
            text, more["why"] = "left out", last
        else:
            more["why"] = last
            text = "crashed" if status is not None and status < 0 else "failed"
            if status is None:
                # A limit that the part cut short says nothing about the step: it may run again.
                text, more["limit"] = "time limit" if limit >= step.limit else "no time left", round(limit, 1)
            if not ended:
                more["why"] = "it cannot be ended: it hangs in the driver"
        if step.proves_peer and text != "ok":
            self.bitsandbytes = None
        self.finish(step, text, seconds, **more)
        if self.has_device and text not in GOOD:
            self.lost = self.device_answers() != 0

    def found_again(self):
        self.lost = self.device_answers() != 0
        return not self.lost

    def watch_clocks(self):
        """A process that writes clocks and power, or None."""
        path = self.out / f"{self.part}_clocks.csv"
        program = self.program("nvidia-smi")
        with open(path, "a", encoding="utf-8") as file:
            if program is None or not self.has_device:
                file.write("no GPU\n" if not self.has_device else "no nvidia-smi\n")
                return None
            # Drivers call the reasons for lower clocks by different names.
            for reasons in (",clocks_event_reasons.active", ",clocks_throttle_reasons.active", ""):
                fields = f"timestamp,clocks.sm,clocks.mem,power.draw,temperature.gpu{reasons}"
                query = [*program, f"--query-gpu={fields}", "--format=csv,nounits"]
                if self.call(query, LIST_LIMIT)[0] == 0:
                    break
            return subprocess.Popen(
                [*query, "-l", "2"], stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, env=self.env,
                preexec_fn=prepare_child,
            )  # fmt: skip

    def run(self, steps, only=None):
        answer = self.device_answers()
        self.has_device = answer != NO_GPU
        self.note(
            {
                "kind": "run",
                "part": self.part,
                "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
                "commit": self.commit,
                "device": {0: "answers", NO_GPU: "no GPU"}.get(answer, f"does not answer: {answer}"),
                "kernel": os.uname().release,
                "processors": len(os.sched_getaffinity(0)),
                "bitsandbytes": str(self.bitsandbytes) if self.bitsandbytes else None,
                "goes_on": len(self.tried),
            }
        )
        self.log("").write(f"== part {self.part}, commit {self.commit}", always=True)
        if not self.has_device:
            print("no GPU: every program is started, nothing is measured", flush=True)
        clocks = self.watch_clocks()
        try:
            wanted = [step for step in self.expanded(steps) if not only or re.search(only, step.name)]
            wanted = [step for step in wanted if step.name not in self.tried]
            # What was interrupted may have been what ended the run: it comes last.
            wanted.sort(key=lambda step: step.name in self.interrupted)
            for together, group in itertools.groupby(wanted, key=lambda step: step.together):
                if together:
                    self.run_together(group)
                    continue
                for step in group:
                    self.run_step(step)
        finally:
            if clocks is not None:
                end(clocks, 1)
            shutil.rmtree(self.scratch, ignore_errors=True)
            code = self.print_summary()
            for file in (self.results, *self.logs.values()):
                file.close()
        return code

    def print_summary(self):
        counts = {}
        for _, status, _ in self.summary:
            counts[status] = counts.get(status, 0) + 1
        self.note({"kind": "end", "part": self.part, "steps": counts})
        text = ", ".join(f"{n} {status}" for status, n in sorted(counts.items()))
        print(f"{self.part}: {text or 'nothing left to do'}")
        return 0 if all(status in GOOD for _, status, _ in self.summary) else 1


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message):
        self.exit(2, f"error: {message}\n")


def pattern(text):
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a regular expression: {error}") from None


def positive(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return int(text)


def directory(text):
    path = pathlib.Path(text)
    if path.exists() and not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is not a folder")
    return path


def existing_file(text):
    if not os.path.isfile(text):
        raise argparse.ArgumentTypeError(f"there is no file {text}")
    return pathlib.Path(text)


def main():
    parser = Parser(description="Runs a part of the kernels' measurements")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("part", choices=kernels_parts.PARTS)
    parser.add_argument("--out", type=directory, default=os.environ.get("OUT", "bench/results"))
    parser.add_argument("--seconds", type=float, default=470, help="of the whole part [470]")
    parser.add_argument("--jobs", type=positive, default=max(1, len(os.sched_getaffinity(0)) // 2),
                        help="processes at a time where times are not measured [half of the processors]")  # fmt: skip
    parser.add_argument("--only", type=pattern, metavar="RE", help="steps whose name matches")
    parser.add_argument("--afresh", action="store_true", help="forget what was tried before")
    parser.add_argument("--after", type=existing_file, action="append", default=[], metavar="JSONL",
                        help="do without the steps that these results have")  # fmt: skip
    parser.add_argument("--scratch", type=pathlib.Path, help="for large files [FOLDER/scratch]")
    parser.add_argument("--bitsandbytes", type=existing_file, help="libbitsandbytes_cudaXXX.so")
    parser.add_argument("--cublaslt", type=existing_file, help="the library, if it is not where libraries are")
    options = parser.parse_args()
    folder = options.folder.resolve()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the step in progress is ended, too
    runner = Runner(
        folder, options.part, options.out.resolve(), seconds=options.seconds, jobs=options.jobs,
        scratch=options.scratch and options.scratch.resolve() / f"nibble-{os.getpid()}", cublaslt=options.cublaslt,
        bitsandbytes=options.bitsandbytes or find_bitsandbytes(folder),
    )  # fmt: skip
    runner.load_state(options.afresh, options.after)
    sys.exit(runner.run(kernels_parts.PARTS[options.part], options.only))


if __name__ == "__main__":
    main()
