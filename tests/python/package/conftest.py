"""What the tests of the package nibble share: golden bytes, and a small checkpoint.

PYTHONPATH=python python -m pytest tests/python/package
"""

import json
import pathlib

import nibble
import numpy as np
import pytest

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "golden/codecs.safetensors"
TYPES = {"float32": "F32", "uint8": "U8", "int64": "I64", "float16": "F16"}


@pytest.fixture(scope="session")
def golden():
    """What bitsandbytes wrote (tests/golden/make_golden.py)."""
    return nibble.open(GOLDEN)


def write(path, tensors):
    header, offset = {}, 0
    for name, array in tensors.items():
        end = offset + array.nbytes
        header[name] = {"dtype": TYPES[array.dtype.name], "shape": array.shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    data = b"".join(array.tobytes() for array in tensors.values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


@pytest.fixture
def write_checkpoint():
    """Writes a safetensors file without nibble: write_checkpoint(path, {name: array})."""
    return write


@pytest.fixture
def weights():
    random = np.random.default_rng(0)
    return {
        "layers.0.weight": random.standard_normal((128, 64), dtype=np.float32),
        "layers.1.weight": random.standard_normal((64, 128), dtype=np.float32),
        "bias": np.arange(128, dtype=np.float32),
    }


@pytest.fixture(params=["large differences", "a large mean"])
def near_infinity(request):
    """Weights of which double quantization would make infinities: absmax is the sum of a mean and of a difference, both
    of them rounded."""
    weights = np.zeros((8, 64), np.float32)
    largest = np.finfo(np.float32).max
    weights[:2, 0] = largest, 13 * 2.0**104
    if request.param == "a large mean":
        weights[:, 0] = largest
        weights[0, 0] = np.float32(0.9) * largest
    return weights


@pytest.fixture
def checkpoint(tmp_path, weights):
    return write(tmp_path / "in.safetensors", weights)
