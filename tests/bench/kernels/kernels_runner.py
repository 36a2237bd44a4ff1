#!/usr/bin/env python3
"""The runner of bench/kernels/run/kernels_run.py with steps that hang, crash, flood and lie: each may cost itself only.

usage: tests/bench/kernels/kernels_runner.py
"""

import itertools
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "bench" / "kernels" / "run"))

import kernels_lines  # noqa: E402
import kernels_ncu  # noqa: E402
import kernels_run  # noqa: E402
from kernels_parts import PARTS, Step  # noqa: E402

# Shell programs, a line each. bench_kernels is asked whether the device answers. FOLDER is that of the test.
PROGRAMS = r"""
bench_kernels: [ ! -e FOLDER/lost ] && { [ ! -e FOLDER/lost_once ] || { rm FOLDER/lost_once; false; }; }
good: echo '{"name": "speed", "median": 1}'; echo text; echo error >&2
hangs: echo begun; trap '' TERM; while :; do sleep 0.1; done
talks: for i in 1 2 3 4; do echo "$1"; echo "{\"word\": \"$1\"}"; sleep 0.2; done
crashes: echo 'CUDA error: illegal address' >&2; kill -SEGV $$
waits: sleep 0.5
fails: echo the last words; exit 1
no_gpu: exit 77
no_peer: echo there is no torch; exit 78
leaves_child: sh -c 'sleep 60; :' FOLDER/child & echo done
cut_line: printf '{"name": "half'
floods: head -c 30000000 /dev/zero | tr '\0' x | fold -w 100
loses: touch FOLDER/lost; exit 1
loses_once: touch FOLDER/lost_once; exit 1
lists: [ "$1" = --list ] && printf 'one\ntwo\na text that is no name\n' || echo "ran $1"
suites: printf 'Running main()\nSuite.\n  Case\nTyped/0.  # TypeParam = int\n  Case\n'
names_nothing: exit 1
tool: echo the tool; "$@"
nvidia-smi: case "$*" in *event_reasons*) exit 2 ;; *throttle*-l*) echo the clocks; sleep 60 ;; esac
arguments: echo "arguments: $*"
"""


class Runner(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.out = self.folder / "out"
        (self.folder / "bin").mkdir()
        for line in PROGRAMS.strip().splitlines():
            name, text = line.split(": ", 1)
            path = self.folder / "bin" / name
            path.write_text("#!/bin/sh\n" + text.replace("FOLDER", str(self.folder)) + "\n")
            path.chmod(0o755)

    def run_steps(self, *steps, afresh=False, after=(), only=None, **options):
        self.code, runner = None, kernels_run.Runner(self.folder, "part", self.out, **options)
        runner.load_state(afresh, after)
        self.code = runner.run(steps, only)
        return runner

    def lines(self):
        return list(kernels_lines.read_lines(self.out / "part.jsonl"))

    def statuses(self):
        return {line["step"]: line["status"] for line in self.lines() if line.get("kind") == "step"}

    def text(self, name="part.log"):
        return (self.out / name).read_text()

    def step(self, name, *words, limit=20, **more):
        return Step(name, (name, *words), limit, **more)

    def test_results_and_texts(self):
        self.run_steps(self.step("good"))
        self.assertIn({"step": "good", "name": "speed", "median": 1}, self.lines())
        self.assertIn("text\n", self.text())
        self.assertIn("error\n", self.text())
        self.assertEqual(self.lines()[0]["device"], "answers")
        self.assertEqual((self.statuses(), self.code), ({"good": "ok"}, 0))

    def test_each_failure_costs_its_own_step(self):
        begin = time.monotonic()
        self.run_steps(self.step("hangs", limit=1), self.step("crashes"), self.step("fails"), self.step("no_peer"),
                       self.step("good"))  # fmt: skip
        self.assertLess(time.monotonic() - begin, 15)
        self.assertEqual(
            self.statuses(),
            {"hangs": "time limit", "crashes": "crashed", "fails": "failed", "no_peer": "left out", "good": "ok"},
        )
        why = {line["step"]: line.get("why") for line in self.lines() if line.get("kind") == "step"}
        self.assertEqual(why["crashes"], "CUDA error: illegal address")
        self.assertEqual(why["fails"], "the last words")
        self.assertEqual(self.code, 1)

    def test_what_a_step_leaves_behind_is_ended_and_not_waited_for(self):
        begin = time.monotonic()
        self.run_steps(self.step("leaves_child", limit=15))
        self.assertLess(time.monotonic() - begin, 10)
        self.assertEqual(self.statuses(), {"leaves_child": "ok"})
        left = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
        self.assertNotIn(str(self.folder / "child"), left)

    def test_a_line_that_is_cut_off_is_text(self):
        self.run_steps(self.step("cut_line"))
        self.assertIn('{"name": "half', self.text())

    def test_files_stay_small_and_say_so(self):
        self.run_steps(self.step("floods"), self.step("good"))
        self.assertLess((self.out / "part.log").stat().st_size, 2 << 20)
        self.assertIn("is left out: too long", self.text())
        self.assertIn("text\n", self.text())

    def test_a_step_has_a_file_of_its_own(self):
        self.run_steps(self.step("good", log="own.txt"))
        self.assertIn("text\n", self.text("part_own.txt"))
        self.assertNotIn("text\n", self.text())

    def test_names_become_steps(self):
        self.run_steps(
            Step("a/{name}", ("lists", "{name}"), 20, names=("--list",)),
            Step("b/{name}", ("suites", "{name}"), 20, names=("--gtest_list_tests",)),
            Step("c/{name}", ("names_nothing", "{name}"), 20, names=("--list",)),
        )
        self.assertEqual(self.statuses(), {"a/one": "ok", "a/two": "ok", "b/Suite": "ok", "b/Typed/0": "ok",
                                           "c": "failed"})  # fmt: skip
        self.assertIn("ran two\n", self.text())

    def test_tools(self):
        self.run_steps(self.step("good", tool=("tool",)), self.step("fails", tool=("absent",)), self.step("missing"),
                       self.step("bench_tune", optional=True))  # fmt: skip
        self.assertEqual(self.statuses(), {"good": "ok", "fails": "left out", "missing": "left out",
                                           "bench_tune": "left out"})  # fmt: skip
        self.assertIn("the tool\n", self.text())

    def test_without_a_device_programs_run_without_their_tools(self):
        (self.folder / "bin" / "bench_kernels").write_text("#!/bin/sh\nexit 77\n")
        self.run_steps(self.step("no_gpu", tool=("absent",)), self.step("nvidia-missing"))
        self.assertEqual(self.statuses(), {"no_gpu": "no GPU", "nvidia-missing": "no GPU"})
        self.assertEqual(self.code, 0)
        self.run_steps(self.step("no_gpu"))  # which is no reason to do without them when there is one
        self.assertEqual(len([line for line in self.lines() if line.get("kind") == "step"]), 3)

    def test_it_goes_on_where_it_stopped(self):
        steps = [self.step("crashes"), self.step("good")]
        self.run_steps(*steps, only="crashes")
        self.run_steps(*steps)
        self.run_steps(*steps)
        tried = [line["step"] for line in self.lines() if line.get("kind") == "step"]
        self.assertEqual(tried, ["crashes", "good"])
        self.run_steps(*steps, afresh=True, after=[self.out / "part.jsonl"])
        self.assertEqual(self.lines()[-1]["steps"], {})
        self.run_steps(*steps, afresh=True)
        self.assertEqual(self.lines()[-1]["steps"], {"crashed": 1, "ok": 1})
        (self.folder / "commit").write_text("another\n")
        self.run_steps(*steps)
        self.assertEqual(self.lines()[-1]["steps"], {"crashed": 1, "ok": 1})

    def test_what_was_interrupted_comes_last(self):
        steps = [self.step("fails"), self.step("good")]
        runner = kernels_run.Runner(self.folder, "part", self.out)
        runner.load_state(True, [])
        runner.save_state({"begun": "fails"})
        runner.results.close()
        self.run_steps(*steps)
        self.assertEqual(list(self.statuses()), ["good", "fails"])

    def test_a_part_ends_in_time(self):
        begin = time.monotonic()
        steps = [self.step("hangs", limit=60), self.step("good", limit=60)]
        with unittest.mock.patch.object(kernels_run, "MIN_SECONDS", 1):
            self.run_steps(*steps, seconds=2)
        self.assertLess(time.monotonic() - begin, 10)
        self.assertEqual(self.statuses(), {"hangs": "no time left", "good": "no time left"})
        self.run_steps(*steps[1:])
        self.assertEqual(self.statuses()["good"], "ok")

    def test_a_lost_device_is_asked_and_not_waited_for(self):
        self.run_steps(self.step("loses"), self.step("good"))
        self.assertEqual(self.statuses(), {"loses": "failed", "good": "device lost"})
        (self.folder / "lost").unlink()
        self.run_steps(self.step("loses"), self.step("good"))
        self.assertEqual(self.statuses()["good"], "ok")

    def test_a_device_that_answers_again_is_used(self):
        self.run_steps(self.step("loses_once"), self.step("good"))
        self.assertEqual(self.statuses(), {"loses_once": "failed", "good": "ok"})

    def test_clocks_are_written_meanwhile(self):
        self.run_steps(self.step("waits"))
        self.assertEqual(self.text("part_clocks.csv"), "the clocks\n")

    def test_later_steps_do_without_a_peer_that_does_not_load(self):
        arguments = self.step("arguments", "{bitsandbytes}", "x")
        steps = [self.step("crashes", "{bitsandbytes}", proves_peer=True), arguments]
        self.run_steps(*steps, bitsandbytes="/lib.so")
        self.assertIn("arguments: x\n", self.text())
        self.run_steps(*steps[1:], afresh=True, bitsandbytes="/lib.so")
        self.assertIn("arguments: --bitsandbytes /lib.so x\n", self.text())

    def test_a_runner_that_is_ended_ends_its_step(self):
        program = textwrap.dedent(f"""
            import pathlib, signal, sys
            sys.path.insert(0, {str(ROOT / "bench" / "kernels" / "run")!r})
            import kernels_run
            from kernels_parts import Step
            runner = kernels_run.Runner(pathlib.Path({str(self.folder)!r}), "part", pathlib.Path({str(self.out)!r}))
            runner.load_state(False, [])
            runner.run([Step("hangs", ("hangs",), 60)])
        """)
        for name in (signal.SIGTERM, signal.SIGKILL):
            process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.DEVNULL)
            deadline = time.monotonic() + 10
            while "begun" not in (self.text() if (self.out / "part.log").exists() else "").splitlines():
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.05)
            (self.out / "part.log").unlink()
            process.send_signal(name)
            process.wait(10)
            time.sleep(0.2)
            running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
            self.assertNotIn(str(self.folder / "bin" / "hangs"), running)

    def test_steps_that_run_together(self):
        words = ("a", "b", "c", "d")
        begin = time.monotonic()
        self.run_steps(*(Step(word, ("talks", word), 20, together=True) for word in words), jobs=4)
        self.assertLess(time.monotonic() - begin, 2.4)  # one after the other they take 3.2 seconds
        self.assertEqual(self.statuses(), dict.fromkeys(words, "ok"))
        said = [line for line in self.text().splitlines() if line in words]
        self.assertEqual(sorted(said), sorted(words * 4))
        self.assertEqual(len(list(itertools.groupby(said))), 4)  # nobody is interrupted
        self.assertEqual([line["word"] for line in self.lines() if "word" in line], said)
        self.assertTrue(all(line["step"] == line["word"] for line in self.lines() if "word" in line))

    def test_a_step_begins_when_those_that_run_together_have_ended(self):
        self.run_steps(self.step("hangs", limit=1, together=True), self.step("fails", together=True),
                       self.step("good"), jobs=2)  # fmt: skip
        self.assertEqual(list(self.statuses()), ["fails", "hangs", "good"])
        self.assertEqual(self.statuses()["hangs"], "time limit")

    def test_a_runner_that_stops_ends_the_steps_that_run_together(self):
        def stop(number, frame):
            raise KeyboardInterrupt

        signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, 1)
        begin = time.monotonic()
        with self.assertRaises(KeyboardInterrupt):
            self.run_steps(*(Step(f"step{i}", ("hangs",), 60, together=True) for i in range(3)), jobs=2)
        self.assertLess(time.monotonic() - begin, 20)
        self.assertEqual(self.statuses(), {})  # so that they run again


class Options(unittest.TestCase):
    """Wrong usage of bench/kernels.sh: one line that names it, exit code 2, and nothing is built or deleted."""

    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.built = self.folder / "built"
        shutil.copytree(ROOT / "bench" / "kernels" / "run", self.built)

    def check(self, words, *texts):
        # Where there is no CMake, nothing is built by mistake.
        env = {**os.environ, "PATH": str(self.make_path())}
        command = [ROOT / "bench" / "kernels.sh", *words]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=20)
        self.assertEqual((done.returncode, done.stdout), (2, ""), done)
        self.assertRegex(done.stderr, r"\Aerror: [^\n]+\n\Z")
        for text in texts:
            self.assertIn(text, done.stderr)

    def make_path(self):
        path = self.folder / "path"
        path.mkdir(exist_ok=True)
        for name in ("env", "bash", "python3", "ls", "dirname", "mkdir"):
            if not (path / name).exists():
                (path / name).symlink_to(shutil.which(name))
        return path

    def test_command(self):
        self.check(["test"], "test is not build or run")
        program = ROOT / "bench" / "kernels.sh"
        for words, code, stream in ((["--help"], 0, "stdout"), ([], 2, "stderr")):
            done = subprocess.run([program, *words], capture_output=True, text=True, check=False, timeout=20)
            self.assertEqual(done.returncode, code)
            self.assertIn("kernels.sh build DIR", getattr(done, stream))

    def test_build(self):
        package = self.folder / "package"
        package.mkdir()
        own = self.folder / "own"
        (own / "bin").mkdir(parents=True)
        for words, text in [
            ([], "build needs a folder"),
            (["--bitsandbytes", package], "build needs a folder"),
            ([self.built / "kernels_run.py"], "kernels_run.py is not a folder"),
            ([own], f"{own} has other files"),
            ([self.folder / "new", "--fast"], "no option --fast"),
            ([self.folder / "new", "--bitsandbytes"], "--bitsandbytes needs the folder"),
            ([self.folder / "new", "--bitsandbytes", package], "package has no libbitsandbytes_cuda*.so"),
            ([self.folder / "new", "--bitsandbytes", package, "more"], "build takes no argument more"),
        ]:
            with self.subTest(words=words):
                self.check(["build", *words], text)
        self.assertTrue((own / "bin").is_dir())
        self.assertFalse((self.folder / "new").exists())

    def test_run(self):
        absent = self.folder / "absent"
        for words, *texts in [
            ([], "run needs a folder"),
            ([absent, "check"], f"{absent} is not a folder that kernels.sh build made"),
            ([self.folder, "check"], f"{self.folder} is not a folder that kernels.sh build made"),
            ([self.built], "part"),
            ([self.built, "speed"], "'speed'", "check", "tune", "ceilings"),
            ([self.built, "check", "--fast"], "--fast"),
            ([self.built, "check", "--seconds", "many"], "--seconds", "'many'"),
            ([self.built, "check", "--jobs", "0"], "--jobs", "'0'"),
            ([self.built, "check", "--out", ROOT / "README.md"], "--out", "README.md is not a folder"),
            ([self.built, "check", "--only", "("], "--only", "'('"),
            ([self.built, "check", "--after", absent], "--after", f"there is no file {absent}"),
            ([self.built, "check", "--cublaslt", absent], "--cublaslt", f"there is no file {absent}"),
            ([self.built, "check", "--bitsandbytes", absent], "--bitsandbytes", f"there is no file {absent}"),
        ]:
            with self.subTest(words=words):
                self.check(["run", *words], *texts)


class Parts(unittest.TestCase):
    def test_names_are_unique_and_files_few(self):
        for part, steps in PARTS.items():
            names = [step.name for step in steps]
            self.assertEqual(len(names), len(set(names)), part)
            # The results, the log, the clocks, and what kernels_ncu.py writes.
            self.assertLessEqual(3 + len({step.log for step in steps if step.log}) + (part == "tune"), 8)

    def test_fifteen_cases_are_profiled(self):
        self.assertEqual(sum(step.name.startswith("ncu/") for step in PARTS["tune"]), 15)

    def test_the_tools_see_every_operation(self):
        operations = {"matmul", "int8-matmul", "shared-matmul", "expert-matmul", "dequantize", "quantize"}
        for tool in ("memcheck", "racecheck", "synccheck", "initcheck", "ncu"):
            names = [step.name.split("/") for steps in PARTS.values() for step in steps]
            own = {name[1].split(",")[0] for name in names if name[0] == tool and "," in name[1]}
            self.assertEqual(own, operations, tool)


class Metrics(unittest.TestCase):
    def test_numbers_of_the_raw_page(self):
        names = ["ID", "Process ID", "gpu__time_duration.sum", "dram__bytes_read.sum", "other", *"abcdefg"]
        rows = [names, ["", "", "ns", "byte", ""] + [""] * 7, ["0", "7", "28,416", "1.5", "3"] + ["x"] * 7]
        text = "==PROF== connected\n" + "\n".join(",".join(f'"{cell}"' for cell in row) for row in rows)
        self.assertEqual(kernels_ncu.metrics(text),
                         {"gpu__time_duration.sum [ns]": 28416.0, "dram__bytes_read.sum [byte]": 1.5})  # fmt: skip
        self.assertEqual(kernels_ncu.metrics("no report\n"), {})

    def test_source_file_stays_small(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "source.csv"
            for i in range(10):
                kernels_ncu.append(path, f"case {i}", "x" * (1 << 20))
            self.assertLessEqual(os.stat(path).st_size, kernels_ncu.MAX_SOURCE_BYTES)
            # Each case is named, and one that has no room says so.
            self.assertEqual(path.read_text().count("case "), 10)
            self.assertTrue(path.read_text().endswith("case 9\nleft out: 1048576 characters\n"))

    def test_of_the_source_what_says_something_is_kept(self):
        text = ('"Kernel Name","a kernel"\n'
                '"#","Source","Warp Stall Sampling (All Samples)","stall_barrier","stall_wait (Not-issued)","stall_sleep",'
                '"Instructions Executed","Register Usage"\n'
                '"0","LDG.E R1, [R2]","12","12","3","0","8","30"\n'
                '"1","FADD R1, R1, R2","0","0","1","0","8","31"\n')  # fmt: skip
        self.assertEqual(kernels_ncu.source_of(text),
                         "Kernel Name,a kernel\n"
                         "Source,Warp Stall Sampling (All Samples),stall_barrier,Instructions Executed\n"
                         '"LDG.E R1, [R2]",12,12,8\n"FADD R1, R1, R2",0,0,8\n')  # fmt: skip
        self.assertEqual(kernels_ncu.source_of("no report\n"), "no report\n")


if __name__ == "__main__":
    unittest.main()
