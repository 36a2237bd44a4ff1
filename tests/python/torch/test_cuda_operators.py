"""torch.ops.nibble on CUDA tensors, in a process of its own, before which a library is loaded that stands for CUDA."""

import os
import pathlib
import subprocess
import sys

import pytest

TESTS = pathlib.Path(__file__).with_name("simulated_cuda_operators.py")
BUILT = TESTS.parents[3] / "build" / "release" / "tests"
KERNELS = pathlib.Path(os.environ.get("NIBBLE_SIMULATED_CUDA", BUILT / "libnibble_cuda_simulated.so"))


def test_on_a_simulated_device():
    torch_cuda = KERNELS.with_name("libnibble_torch_cuda_simulated.so")
    for library in (KERNELS, torch_cuda):
        if not library.is_file():
            pytest.skip(f"{library} does not exist")
    environment = {**os.environ, "NIBBLE_CUDA_LIBRARY": str(KERNELS), "LD_PRELOAD": str(torch_cuda)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", TESTS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
