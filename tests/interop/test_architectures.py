"""Tiny models of many architectures: the same modules are quantized that transformers quantizes when it loads the
plain model, every tensor is equal, and so are the outputs."""

import re
import shutil

import architectures
import pytest
import torch
from loading import first_output, load, quantization_config, quantize_on_the_fly, quantized_modules, raw
from transformers import BitsAndBytesConfig

CONFIGS = {
    "nf4": dict(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32),
    "int8": dict(load_in_8bit=True),
}
NOTHING_REPLACED = {"FalconForCausalLM"}
# bitsandbytes multiplies by int8 weights in 2 and 3 dimensions only; the attention of these models has 4.
CANNOT_RUN = {("DeepseekV3ForCausalLM", "int8"), ("WavLMModel", "int8")}


@pytest.fixture(scope="module", params=architectures.CASES)
def saved(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp("model")
    architectures.save(request.param, directory)
    yield request.param, directory
    shutil.rmtree(directory)


@pytest.mark.parametrize("to", CONFIGS)
def test_equals_the_model_quantized_on_loading(nibble, saved, to):
    name, source = saved
    cls = architectures.model_class(name)
    directory = nibble.convert(source, to, *(["--no-double-quant"] if to == "nf4" else []))
    ours = load(directory, cls)
    theirs = quantize_on_the_fly(source, BitsAndBytesConfig(**CONFIGS[to]), cls)
    assert quantized_modules(ours) == quantized_modules(theirs)
    assert bool(quantized_modules(ours)) == (name not in NOTHING_REPLACED)
    assert not [w for w in nibble.warnings if "is not in the table" in w or "cannot load" in w]

    ours_state, theirs_state = ours.state_dict(), theirs.state_dict()
    assert ours_state.keys() == theirs_state.keys()
    different = [key for key, value in ours_state.items() if not torch.equal(raw(value), raw(theirs_state[key]))]
    assert not different
    if (name, to) in CANNOT_RUN:
        return
    a, b = (first_output(model, architectures.inputs(name)) for model in (ours, theirs))
    assert torch.isfinite(a).all() and a.abs().max() > 0
    assert torch.equal(a, b)


# The layers that stay plain beside those that transformers keeps, numbers left out.
USED_OUTSIDE = {
    "MambaForCausalLM": {"backbone.layers.mixer.dt_proj"},
    "MobileBertForMaskedLM": {"cls.predictions.dense"},
    "WavLMModel": {f"encoder.layers.attention.{side}_proj" for side in ("q", "k", "v", "out")},
    "LayoutLMv3Model": {"encoder.rel_pos_bias", "encoder.rel_pos_x_bias"},  # the one of y is the last parameter
    "DetrForSegmentation": {"bbox_attention.k_proj"},
}


@pytest.mark.parametrize("to", CONFIGS)
@pytest.mark.parametrize("name", architectures.WITH_USES_OUTSIDE)
def test_layers_whose_weight_is_used_outside_stay_plain(nibble, tmp_path, name, to):
    cls = architectures.model_class(name)
    architectures.save(name, tmp_path / "plain")
    directory = nibble.convert(tmp_path / "plain", to, *(["--no-double-quant"] if to == "nf4" else []))
    ours = load(directory, cls)
    all_of_them = quantized_modules(quantize_on_the_fly(tmp_path / "plain", BitsAndBytesConfig(**CONFIGS[to]), cls))
    plain = all_of_them.keys() - quantized_modules(ours).keys()
    assert {re.sub(r"\.[0-9]+\b", "", layer) for layer in plain} == USED_OUTSIDE[name]

    if (name, to) in CANNOT_RUN:
        return
    config = {**quantization_config(directory), **CONFIGS[to]}
    theirs = quantize_on_the_fly(tmp_path / "plain", config, cls)
    a, b = (first_output(model, architectures.inputs(name)) for model in (ours, theirs))
    assert torch.isfinite(a).all() and a.abs().max() > 0
    assert torch.equal(a, b)


def test_a_missing_module_is_noticed(nibble, tmp_path):
    """The comparison can fail: a layer that nibble leaves is not one that transformers leaves."""
    architectures.save("BertModel", tmp_path)
    cls = architectures.model_class("BertModel")
    directory = nibble.convert(tmp_path, "int8", "--skip", r"pooler\.dense\.weight")
    theirs = quantize_on_the_fly(tmp_path, BitsAndBytesConfig(load_in_8bit=True), cls)
    assert quantized_modules(theirs).keys() - quantized_modules(load(directory, cls)).keys() == {"pooler.dense"}
