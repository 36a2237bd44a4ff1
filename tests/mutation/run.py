#!/usr/bin/env python3
"""Plants the mutants of mutants.toml one at a time and says which of them the tests notice.

    tests/mutation/run.py                 all mutants; writes docs/mutation.md if all are as mutants.toml says
    tests/mutation/run.py --resume        tries those that the last such run has not tried or that no test noticed then
    tests/mutation/run.py --only REGEX    those whose file or change matches; writes nothing
    tests/mutation/run.py --page          writes docs/mutation.md from what such runs have found so far
    tests/mutation/run.py --check         only whether every mutant can still be planted (CI runs this)

Works on a copy of the sources in build/mutation, which is built incrementally: a mutant costs the compilation of what
it touches and its tests. The tests of the mutant's own area run first, then all others.

The copy is built two folders below its root, as a build of the sources themselves is. So ccache, told the folder that
both are in (base_dir), compiles nothing that it has compiled there.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "mutation"
TREE = BUILD / "sources" / "build" / "tree"
NOTICED = BUILD / "noticed.jsonl"  # for --resume: a mutant and the test that noticed it in each line
PAGE = ROOT / "docs" / "mutation.md"
PROGRAMS = ("nibble_codec_tests", "nibble_tests", "nibble_kernel_tests", "nibble_c_api_tests")
HANG = 5  # a mutant that takes this many times as long as the tests without one is noticed, too


@dataclasses.dataclass
class Mutant:
    file: str
    find: str
    replace: str
    breaks: str  # what the change breaks, in words
    tests: str = "*"  # the tests that are likely to notice, as --gtest_filter takes them
    program: str = "nibble_tests"
    survives: str = ""  # why no test can notice, for mutants that change nothing that can be seen

    @property
    def key(self):
        return f"{self.file}: {self.find} -> {self.replace}"

    def source_text(self, sources):
        """The file's text and where in it the mutant goes."""
        text = (sources / self.file).read_text()
        if text.count(self.find) != 1:
            sys.exit(f"{self.file}: {self.find!r} occurs {text.count(self.find)} times, not once: mend mutants.toml")
        return text


def load():
    with open(pathlib.Path(__file__).with_name("mutants.toml"), "rb") as file:
        return [Mutant(**mutant) for mutant in tomllib.load(file)["mutant"]]


def read_noticed():
    return dict(json.loads(line) for line in NOTICED.read_text().splitlines()) if NOTICED.exists() else {}


def copy_sources():
    """Brings build/mutation/sources up to date; files that are the same keep their time, so nothing is rebuilt."""
    listed = subprocess.check_output(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, text=True).splitlines()
    sources = BUILD / "sources"
    wanted = {name for name in listed if (ROOT / name).is_file()}
    for name in wanted:
        target = sources / name
        if target.exists() and target.read_bytes() == (ROOT / name).read_bytes():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
        os.utime(target)
    for target in sources.rglob("*"):
        if target.is_file() and TREE not in target.parents and str(target.relative_to(sources)) not in wanted:
            target.unlink()
    return sources


def configure(sources):
    launcher = ["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
    subprocess.run(["cmake", "-S", sources, "-B", TREE, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
                    "-DNIBBLE_CUDA=OFF", "-DNIBBLE_UNITY=OFF", "-DNIBBLE_PYTHON=ON", *launcher],
                   check=True, stdout=subprocess.DEVNULL)


def compile_all():
    built = subprocess.run(["ninja", "-C", TREE, "nibble", *PROGRAMS], capture_output=True, text=True)
    errors = [line for line in built.stdout.splitlines() if " error: " in line]
    return built.returncode == 0, errors[0] if errors else built.stdout[-300:]


class DoesNotCompile(Exception):
    """A mutant that shows nothing, because no test ran."""


def notices(program, tests, limit):
    """The first test that fails, "a hang", or None."""
    command = [TREE / "tests" / program, "--gtest_brief=1", "--gtest_fail_fast", f"--gtest_filter={tests}"]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=limit)
    except subprocess.TimeoutExpired:
        return "a hang"
    if ran.returncode == 0:
        return None
    failed = re.findall(r"^\[  FAILED  \] ([\w/.]+)", ran.stdout, re.MULTILINE)
    return failed[0] if failed else f"a crash (exit code {ran.returncode})"


def try_mutant(mutant, sources, limits):
    text = mutant.source_text(sources)
    path = sources / mutant.file
    path.write_text(text.replace(mutant.find, mutant.replace))
    try:
        compiles, error = compile_all()
        if not compiles and "static assertion failed" in error:
            return "a static_assert"
        if not compiles:
            raise DoesNotCompile(error)
        first = notices(mutant.program, mutant.tests, limits[mutant.program])
        if first:
            return first
        for program in PROGRAMS:
            if found := notices(program, "*", limits[program]):
                return found
        return None
    finally:
        path.write_text(text)


def write_page(results):
    killed = sum(1 for _, found in results if found)
    explained = [mutant for mutant, found in results if not found and mutant.survives]
    untried = len(results) - killed - len(explained)
    lines = [
        "# Mutants",
        "",
        "A test that cannot fail shows nothing. `tests/mutation/run.py` plants small mistakes in the code, one at a "
        "time, and runs the tests. The list is picked by hand: guards that are left out, bounds that are off by one, "
        "steps in another order. That program wrote this page.",
        "",
        f"{killed} of {len(results)} are noticed."
        + (f" {len(explained)} change nothing that can be seen." if explained else "")
        + (f" {untried} are newer than the last run, which has not tried them." if untried else ""),
        "",
        "| File | What the mutant breaks | Noticed by |",
        "|---|---|---|",
    ]
    for mutant, found in results:
        by = f"`{found}`" if found else f"none: {mutant.survives}" if mutant.survives else "not tried"
        lines.append(f"| `{mutant.file}` | {mutant.breaks} | {by} |")
    PAGE.write_text("\n".join(lines) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", metavar="REGEX")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    mutants = load()
    for mutant in mutants:
        mutant.source_text(ROOT)
    if options.check:
        print(f"{len(mutants)} mutants can be planted")
        return
    if options.page:
        noticed = read_noticed()
        write_page([(mutant, noticed.get(mutant.key)) for mutant in mutants])
        return
    chosen = [m for m in mutants if re.search(options.only, f"{m.file} {m.breaks}")]
    sources = copy_sources()
    configure(sources)
    compiles, error = compile_all()
    if not compiles:
        sys.exit(f"the code does not compile without a mutant: {error}")
    limits = {}
    for program in PROGRAMS:
        begin = time.monotonic()
        if failed := notices(program, "*", None):
            sys.exit(f"{program} fails without a mutant: {failed}")
        limits[program] = HANG * (time.monotonic() - begin) + 10
    results = []
    wrong = 0
    noticed = read_noticed() if options.resume else {}
    if not options.resume and not options.only:
        NOTICED.unlink(missing_ok=True)
    for mutant in chosen:
        try:
            found = noticed.get(mutant.key) or try_mutant(mutant, sources, limits)
            if found and mutant.key not in noticed and not options.only:
                with NOTICED.open("a") as file:
                    file.write(json.dumps([mutant.key, found]) + "\n")
            verdict = f"noticed by {found}" if found else "SURVIVES"
            is_wrong = bool(found) == bool(mutant.survives)
        except DoesNotCompile as error:
            found, verdict, is_wrong = None, f"does not compile: {error}", True
        results.append((mutant, found))
        if is_wrong:
            wrong += 1
            verdict += ", which mutants.toml does not expect"
        print(f"{len(results)}/{len(chosen)} {mutant.file}: {mutant.breaks}: {verdict}", flush=True)
    if not options.only and not wrong:
        write_page(results)
    if wrong:
        sys.exit(f"{wrong} mutants are not as mutants.toml says")


if __name__ == "__main__":
    main()
