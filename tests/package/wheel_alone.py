"""What an installed nibble does with numpy alone: the command, the functions, arrays, and its diagnosis.

wheel_alone.py GOLDEN: tests/golden/codecs.safetensors, what bitsandbytes wrote.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import warnings

import nibble
import numpy as np

SCRIPTS = pathlib.Path(sys.executable).parent
assert pathlib.Path(nibble.__file__).is_relative_to(sys.prefix), "this is not the installed package"
assert "torch" not in sys.modules and "transformers" not in sys.modules


def run(*command):
    # Without what would lead to libraries elsewhere.
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("NIBBLE", "LD_", "PYTHON"))}
    return subprocess.run(command, env=clean, check=True, capture_output=True, text=True).stdout


golden = nibble.open(sys.argv[1])
weights, packed, absmax = (golden[f"nf4.float32{part}"] for part in (".input", "", ".absmax"))

# Arrays: the bytes of bitsandbytes.
quantized = nibble.quantize_nf4(weights)
assert np.array_equal(quantized.packed, packed) and np.array_equal(quantized.absmax, absmax)
assert np.abs(nibble.dequantize_nf4(quantized) - weights).max() < 0.2 * np.abs(weights).max()

# Commands: the same function and the same program.
with tempfile.TemporaryDirectory() as folder:
    source, converted, by_program = (os.path.join(folder, name + ".safetensors") for name in ("a", "b", "c"))
    header = json.dumps({"layer.weight": {"dtype": "F32", "shape": weights.shape, "data_offsets": [0, weights.nbytes]}})
    header = header.encode().ljust(-(-len(header) // 8) * 8)
    pathlib.Path(source).write_bytes(len(header).to_bytes(8, "little") + header + weights.tobytes())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        nibble.convert(source, converted, to="nf4", no_double_quant=True)
    assert [warning.filename for warning in caught] == [__file__], "there is one warning, and it names its caller"
    run(SCRIPTS / "nibble", "convert", source, by_program, "--to", "nf4", "--no-double-quant")
    assert pathlib.Path(converted).read_bytes() == pathlib.Path(by_program).read_bytes()
    with nibble.open(converted) as tensors:
        assert np.array_equal(tensors["layer.weight"], packed)
    assert "layer.weight" in [tensor["name"] for tensor in nibble.inspect(converted)["tensors"]]
    [measured] = nibble.measure(source, converted)["tests"]
    assert 18 < measured["quantized"]["sqnr_db"] < 23, measured
    try:
        nibble.convert(source, converted, to="nf4")
    except nibble.OutputExistsError as error:
        assert converted in str(error)
    else:
        raise AssertionError("an existing output was replaced")

assert run(SCRIPTS / "nibble", "--version").split()[-1] == nibble.__version__
diagnosis = json.loads(run(sys.executable, "-m", "nibble", "--json"))
assert diagnosis["version"] == nibble.__version__
assert pathlib.Path(diagnosis["library"]).is_relative_to(sys.prefix), diagnosis
cuda, kernels = diagnosis["cuda"], pathlib.Path(nibble.__file__).with_name("lib") / "libnibble_cuda.so"
if kernels.exists():
    assert cuda["library"] == str(kernels) and (cuda["device"] is None) == bool(cuda["why"]), cuda
else:
    assert cuda == {"library": None, "device": None, "why": "nibble was built without CUDA"}, cuda
print(run(sys.executable, "-m", "nibble"), end="")
