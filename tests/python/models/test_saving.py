"""save_pretrained() of models with quantized weights: the same tensors again, or one sentence that says why not."""

import json

import nibble
import pytest
import safetensors.torch
import torch
import transformers
from tiny_models import MIXED, convert, save


def same_tensors(directory, other):
    a, b = nibble.open(directory), nibble.open(other)
    assert set(a) == set(b)
    for name in a:
        if "quant_state" in name:  # JSON
            assert json.loads(bytes(a[name])) == json.loads(bytes(b[name])), name
        else:
            assert a.info(name).dtype == b.info(name).dtype and a.info(name).shape == b.info(name).shape, name
            assert a.torch(name).view(-1).view(torch.uint8).equal(b.torch(name).view(-1).view(torch.uint8)), name


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    "options", [["nf4"], ["int8"], ["nf4", *MIXED], ["int8", "--embeddings", "nf4", "--allow-nibble-only"]], ids=str
)
def test_what_is_saved_is_what_was_loaded(tmp_path, options, tied):
    if tied and "--lm-head" in options:
        options = ["nf4", "--embeddings", "int8", "--allow-nibble-only"]
    save(tmp_path / "plain", "Llama", tie_word_embeddings=tied)
    directory = convert(tmp_path / "plain", tmp_path / "quantized", "--to", *options)
    nibble.load(directory).save_pretrained(tmp_path / "saved")
    same_tensors(directory, tmp_path / "saved")
    config = [json.loads((d / "config.json").read_text()) for d in (directory, tmp_path / "saved")]
    method = [c["quantization_config"]["quant_method"] for c in config]
    assert method[0] == method[1]
    ids = torch.arange(8)[None]
    with torch.inference_mode():
        assert torch.equal(nibble.load(tmp_path / "saved")(ids).logits, nibble.load(directory)(ids).logits)


def test_bitsandbytes_reads_what_is_saved(tmp_path):
    bitsandbytes = pytest.importorskip("bitsandbytes")
    save(tmp_path / "plain", "Llama")
    nibble.load(convert(tmp_path / "plain", tmp_path / "nf4", "--to", "nf4")).save_pretrained(tmp_path / "saved")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert sum(isinstance(module, bitsandbytes.nn.Linear4bit) for module in model.modules()) == 2 * 7


def test_fused_experts_are_refused_by_name(tmp_path):
    if transformers.__version__ < "5":
        pytest.skip("transformers 4 has a module for each expert")
    save(tmp_path / "plain", "Mixtral")
    options = ("--to", "nf4", "--experts", "nf4", "--allow-nibble-only")
    model = nibble.load(convert(tmp_path / "plain", tmp_path / "nf4", *options))
    with pytest.raises(
        NotImplementedError, match=r"save_pretrained: 'model\.layers\.0\..*experts\.\w+' holds the quantized"
    ):
        model.save_pretrained(tmp_path / "saved")


def test_weights_that_transformers_renames_are_refused_by_name(tmp_path):
    """A checkpoint of the bare model in a model with a head: its names lack the prefix."""
    save(tmp_path / "plain", "Llama", tie_word_embeddings=True)
    directory = convert(tmp_path / "plain", tmp_path / "nf4", "--to", "nf4")
    file = directory / "model.safetensors"
    state = safetensors.torch.load_file(file)
    state = {name.removeprefix("model."): tensor for name, tensor in state.items() if name != "lm_head.weight"}
    safetensors.torch.save_file(state, file, {"format": "pt"})
    model = nibble.load(directory)
    with pytest.raises(NotImplementedError, match=r"save_pretrained: 'layers\.0\..*' has another name in this model"):
        model.save_pretrained(tmp_path / "saved")
