"""test_loading.py and test_saving.py under transformers 4.57, which python/peers.sh puts into a folder of its own."""

import os
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent
PACKAGES = pathlib.Path(os.environ.get("NIBBLE_TRANSFORMERS4", HERE.parents[2] / "build/peers/transformers4"))


def test_the_same_under_transformers_4(tmp_path):
    if not (PACKAGES / "transformers").is_dir():
        pytest.skip(f"{PACKAGES} does not exist (python/peers.sh)")
    path = [str(PACKAGES), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path)}
    program = "import sys, pytest, transformers; print(transformers.__version__); sys.exit(pytest.main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "-q", "-p", "no:cacheprovider", HERE / "test_loading.py"]
    done = subprocess.run([*command, HERE / "test_saving.py"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:]
    assert done.stdout.startswith("4."), done.stdout
