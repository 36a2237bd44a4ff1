"""The same directories under transformers 4.57. Dense models only: mixtures of experts have other modules there."""

import json
import os
import pathlib
import subprocess
import sys

import architectures
import pytest

NAMES = ["LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Gemma2ForCausalLM", "GPT2LMHeadModel",
         "GPTNeoXForCausalLM", "BloomForCausalLM", "OPTForCausalLM", "Starcoder2ForCausalLM", "BertModel",
         "BertForMaskedLM", "RobertaForMaskedLM", "T5ForConditionalGeneration", "BartForConditionalGeneration",
         "ViTForImageClassification", "WhisperForConditionalGeneration"]  # fmt: skip
TARGETS = ["nf4", "int8"]


@pytest.fixture(scope="module")
def packages():
    path = os.environ.get("NIBBLE_TRANSFORMERS4")
    if path is None and os.environ.get("NIBBLE_WITHOUT_TRANSFORMERS4") == "1":
        pytest.skip("NIBBLE_WITHOUT_TRANSFORMERS4=1: nothing is loaded with transformers 4")
    if path is None or not (pathlib.Path(path) / "transformers").is_dir():
        text = ("NIBBLE_TRANSFORMERS4 must name a directory made with\n  pip install --no-deps --target DIR -r "
                "python/transformers4.txt\nor set NIBBLE_WITHOUT_TRANSFORMERS4=1 to do without")  # fmt: skip
        pytest.fail(text, pytrace=False)
    return pathlib.Path(path).resolve()


@pytest.fixture(scope="module")
def loaded(packages, nibble, tmp_path_factory):
    """{(name, target): what transformers 4 made of it}; one process for all."""
    jobs = {}
    for name in NAMES:
        source = tmp_path_factory.mktemp("source")
        architectures.save(name, source)
        for to in TARGETS:
            directory = nibble.convert(source, to, *nibble.plain_absmax(to))
            jobs[name, to] = {"name": name, "source": str(source), "directory": str(directory)}
    here = pathlib.Path(__file__).parent
    environment = os.environ | {"PYTHONPATH": f"{packages}:{here}"}
    done = subprocess.run([sys.executable, here / "transformers4_load.py"], input=json.dumps(list(jobs.values())),
                          capture_output=True, text=True, env=environment, timeout=600)  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["version"].startswith("4."), result["version"]
    return {key: result[job["directory"]] for key, job in jobs.items()}


@pytest.mark.parametrize("to", TARGETS)
@pytest.mark.parametrize("name", NAMES)
def test_loads_unchanged(loaded, name, to):
    found = loaded[name, to]
    assert "error" not in found, found["error"]
    assert not found["keys"]
    assert found["quantized"] and found["quantized"] == found["quantized_on_the_fly"]
    assert found["finite"] and found["largest_difference"] == 0
    assert found["dtype"] == "torch.float32"
