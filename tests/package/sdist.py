#!/usr/bin/env python3
"""tests/package/sdist.py SDIST: it has the files of the repository that a wheel is built from, and nothing else."""

import pathlib
import subprocess
import sys
import tarfile
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
MAX_BYTES = 1_000_000  # of a file; the largest is the table of architectures

settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
left_out = {path.rstrip("/") for path in settings["tool"]["scikit-build"]["sdist"]["exclude"]}
tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
expected = {path for path in tracked if path.split("/")[0] not in left_out and (ROOT / path).is_file()}

with tarfile.open(sys.argv[1]) as archive:
    members = {member.name.split("/", 1)[1]: member.size for member in archive if member.isfile()}
found = set(members) - {"PKG-INFO"}
if found != expected:
    sys.exit(f"error: missing: {sorted(expected - found)}; not from the repository: {sorted(found - expected)}")
large = {path: size for path, size in members.items() if size > MAX_BYTES}
if large:
    sys.exit(f"error: larger than {MAX_BYTES} bytes: {large}")
print(f"{len(found)} files, {sum(members.values()) / 1e6:.1f} MB")
