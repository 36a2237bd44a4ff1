#!/usr/bin/env python3
"""tests/readme.py: runs the examples of README.md and docs/*.md, after examples/minilm.sh.

Of each page, the blocks that start with ```sh or ```python run in order in one shell, as somebody types them: README's in
what looks like the repository's root after examples/minilm.sh, with an empty home, so that what it says about installing
has to be right; the others in build/minilm, with the program that README installed. Python is that of build/peers, with
the package nibble of the source tree. A script of the repository is not run a second time: .ci/run has to run it.
"""

import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
STEPS = {line.split()[0] for line in (ROOT / ".ci/run").read_text().splitlines() if line.strip()}
PYTHON = ROOT / "build/peers/bin/python"


def commands(page):
    """(what is printed, what the shell runs) of each command of a page."""
    for language, block in re.findall(r"^```(sh|python)\n(.*?)^```", page.read_text(), re.S | re.M):
        if language == "python":
            yield block.splitlines()[0] + " ...", f"{PYTHON} -c {shlex.quote(block)}"
            continue
        for line in block.replace("\\\n", " ").splitlines():
            command = line.split("  #")[0].strip()
            if not command:
                continue
            if not (ROOT / command.split()[0]).is_file():
                yield command, command
            elif command.split()[0] not in STEPS:
                sys.exit(f"error: {page.name}: .ci/run does not run '{command}'")


def build_package():
    """What `pip install .` would install. tests/package/wheel.sh does that itself."""
    configure = ["cmake", "--preset", "release", f"-DNIBBLE_PYTHON_WITH_TORCH={PYTHON}"]
    build = ["cmake", "--build", "--preset", "release", "--target", "nibble_c", "nibble_torch"]
    for command in (configure, build):
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:  # ninja prints the compiler's errors to stdout
            sys.exit(f"{done.stdout}error: exit code {done.returncode}: {shlex.join(command)}")


def run(page, directory, environment):
    """The number of commands that ran. The first one that fails ends it all."""
    found = list(commands(page))
    script = "".join(
        f"printf '%s\\n' {shlex.quote(f'{page.name}: {shown}')} >&2\n"
        f"{command}\nstatus=$?; [[ $status -eq 0 ]] || {{ echo \"error: exit code $status\" >&2; exit 1; }}\n"
        for shown, command in found)  # fmt: skip
    done = subprocess.run(["/bin/bash", "-c", script], cwd=directory, env=environment, stdout=subprocess.DEVNULL)
    if done.returncode != 0:
        sys.exit(f"error: {page.name}: an example failed")
    return len(found)


def main():
    build_package()
    with tempfile.TemporaryDirectory() as work:
        root, home = pathlib.Path(work, "root"), pathlib.Path(work, "home")
        minilm = root / "build/minilm"
        minilm.mkdir(parents=True)
        home.mkdir()
        (root / "build/release").symlink_to(ROOT / "build/release")
        (minilm / "all-MiniLM-L6-v2").symlink_to(ROOT / "build/minilm/all-MiniLM-L6-v2")
        environment = os.environ | {"HOME": str(home), "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "",
                                    "PYTHONPATH": str(ROOT / "python")}  # fmt: skip
        passed = run(ROOT / "README.md", root, environment)
        environment["PATH"] = f"{home}/.local/bin:{environment['PATH']}"
        passed += sum(run(page, minilm, environment) for page in sorted((ROOT / "docs").glob("*.md")))
    if passed == 0:
        sys.exit("error: no example was found")
    print(f"{passed} passed, 0 failed")


if __name__ == "__main__":
    main()
