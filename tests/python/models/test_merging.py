"""nibble merge of adapters that were trained on what nibble.load() gives."""

import shutil

import nibble
import pytest
import safetensors.torch
import torch
import transformers
from tiny_models import FP32, MIXED, convert, dequantized, run, save

peft = pytest.importorskip("peft")


@pytest.mark.parametrize(
    "options",
    [["nf4", *MIXED], ["int8", "--embeddings", "nf4", "--lm-head", "int8", "--allow-nibble-only"]],
    ids=["int8-embeddings-nf4-head", "nf4-embeddings-int8-head"],
)
def test_adapters_of_quantized_embeddings_and_output_layers(tmp_path, options):
    """peft saves their codes beside the factors: they are those of the base, and not its replacement."""
    save(tmp_path / "plain", "Llama")
    base = convert(tmp_path / "plain", tmp_path / "base", "--to", *options)
    config = peft.LoraConfig(r=4, target_modules=["embed_tokens", "lm_head", "q_proj"], init_lora_weights=False)
    trained = peft.get_peft_model(nibble.load(base, **FP32), config)
    trained.save_pretrained(tmp_path / "adapter")
    saved = nibble.open(tmp_path / "adapter" / "adapter_model.safetensors")
    assert any("embed_tokens.base_layer.weight.layers" in name for name in saved)
    assert any("lm_head.base_layer.weight" in name for name in saved)

    # peft itself would take the codes for weights of a plain base.
    factors = {name: saved.torch(name) for name in saved if "lora_" in name}
    shutil.copytree(tmp_path / "adapter", tmp_path / "factors")
    safetensors.torch.save_file(factors, tmp_path / "factors" / "adapter_model.safetensors", {"format": "pt"})
    expected = peft.PeftModel.from_pretrained(dequantized(base), tmp_path / "factors").merge_and_unload()
    run("merge", base, tmp_path / "adapter", tmp_path / "out", "--to", "fp32")
    merged = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    for (name, found), value in zip(merged.state_dict().items(), expected.state_dict().values(), strict=True):
        assert torch.allclose(found, value, rtol=0, atol=4e-6 * value.abs().max().item()), name
    ids = torch.arange(8)[None]
    again = nibble.load(base, adapter=tmp_path / "adapter", **FP32)
    with torch.inference_mode():
        assert torch.equal(again(ids).logits, trained(ids).logits)
