"""The tests where torch is not installed: those that need it are skipped."""

import pathlib
import subprocess
import sys

TESTS = pathlib.Path(__file__).resolve().parents[1]


def test_the_folder_python_torch_is_not_taken_for_torch():
    program = """
import runpy, sys
sys.path.append(sys.argv[1])
runpy.run_path(sys.argv[2])
try:
    import torch
except ImportError:
    print("there is no torch")
"""
    folder = TESTS.parents[1] / "python"  # -S: without what is installed
    command = [sys.executable, "-I", "-S", "-c", program, folder, TESTS / "conftest.py"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout == "there is no torch\n", done.stderr
