"""The same statistics under transformers 4.57, where every expert is a module, and layers return tuples."""

import json
import os
import pathlib
import subprocess
import sys

import nibble.calibration
import numpy as np
import pytest
import tiny

PACKAGES = pathlib.Path(os.environ.get("NIBBLE_TRANSFORMERS4", tiny.ROOT / "build/peers/transformers4"))


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("name", ["Qwen3Moe", "Bert"])
def test_the_same_under_transformers_4(tmp_path, name):
    if not (PACKAGES / "transformers").is_dir():
        pytest.skip(f"{PACKAGES} does not exist (python/peers.sh)")
    model, text = tiny.save(tmp_path / "model", name), tiny.write(tmp_path / "text")
    edit(model / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")
    # 4's names of what 5 calls otherwise
    edit(model / "config.json", num_experts=8, rope_theta=10_000.0)
    options = ("--text", text, "--second-moments", "--sequences", 4)
    ours = tiny.calibrated(model, text, tmp_path / "5", *options[2:])
    path = [str(PACKAGES), str(tiny.ROOT / "python")]
    command = [sys.executable, "-m", "nibble.calibrate", model, *map(str, options), "--out", tmp_path / "4"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    theirs = nibble.calibration.open(tmp_path / "4")
    assert theirs.manifest["versions"]["transformers"].startswith("4.")
    assert theirs.weights.keys() == ours.weights.keys()
    assert {input.file for input in theirs.inputs.values()} == {input.file for input in ours.inputs.values()}
    for weight, (input,) in ours.weights.items():
        (other,) = theirs.weights[weight]
        assert theirs.inputs[other].tokens == ours.inputs[input].tokens
        # A column that is next to nothing beside others has little more than their rounding.
        expected = ours.mean_square(input)
        np.testing.assert_allclose(theirs.mean_square(other), expected, rtol=1e-4, atol=1e-9 * expected.max())
