"""Directories that nibble quantized, in transformers: the logits are those of the dequantized model."""

import json
import os
import pathlib
import subprocess

import nibble
import pytest
import torch
import transformers
from nibble.nn import ExpertWeights, Linear4bit, LinearInt8, QuantizedWeight

PROGRAM = pathlib.Path(os.environ.get("NIBBLE", pathlib.Path(__file__).parents[3] / "build/release/nibble"))
SMALL = dict(vocab_size=256, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
LATENT = dict(q_lora_rank=32, kv_lora_rank=32, qk_rope_head_dim=16, qk_nope_head_dim=16, v_head_dim=16)
ROUTED = dict(n_routed_experts=8, n_group=2, topk_group=1, first_k_dense_replace=1, n_shared_experts=1)
CONFIGS = {
    "Llama": transformers.LlamaConfig(**SMALL, intermediate_size=128),
    "Qwen3Moe": transformers.Qwen3MoeConfig(
        **SMALL, moe_intermediate_size=96, head_dim=16, num_experts=8, num_experts_per_tok=2
    ),
    "Mixtral": transformers.MixtralConfig(**SMALL, intermediate_size=128, num_local_experts=4),
    "GptOss": transformers.GptOssConfig(
        **SMALL, intermediate_size=64, head_dim=16, num_local_experts=4, num_experts_per_tok=2
    ),
    "DeepseekV3": transformers.DeepseekV3Config(
        **SMALL | {"num_key_value_heads": 4}, **LATENT, **ROUTED, intermediate_size=128, moe_intermediate_size=64,
        num_experts_per_tok=2,
    ),
}  # fmt: skip
MIXED = ("--embeddings", "int8", "--lm-head", "nf4", "--allow-nibble-only")


def save(directory, name, **changes):
    torch.manual_seed(0)
    config = CONFIGS[name].__class__.from_dict(CONFIGS[name].to_dict() | changes)
    model = getattr(transformers, f"{name}ForCausalLM")(config).to(torch.bfloat16).eval()
    model.save_pretrained(directory)
    return model


def convert(source, target, *options):
    done = subprocess.run([PROGRAM, "convert", source, target, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


def dequantized(plain, quantized):
    """`plain` with the weights that `quantized` has."""
    parameters = dict(plain.named_parameters(remove_duplicate=False))
    for name, module in quantized.named_modules():
        if isinstance(module, ExpertWeights):
            parameters[name].data = torch.stack([expert.dequantize() for expert in module.experts])
        elif isinstance(module, QuantizedWeight) and name in parameters:
            parameters[name].data = module.dequantize()
        elif isinstance(module, Linear4bit | LinearInt8) and f"{name}.weight" in parameters:
            parameters[f"{name}.weight"].data = module.dequantize(torch.bfloat16)
    if hasattr(plain.config, "_experts_implementation"):
        plain.config._experts_implementation = "eager"
    return plain


def check_logits(model, expected):
    ids = torch.arange(34).reshape(2, 17) * 7 % 256
    with torch.inference_mode():
        torch.testing.assert_close(model(ids).logits, expected(ids).logits, rtol=0, atol=0.02)


@pytest.mark.parametrize("name", ["Qwen3Moe", "Mixtral", "GptOss", "DeepseekV3"])
def test_experts_embeddings_and_heads(tmp_path, name):
    plain = save(tmp_path / "plain", name)
    directory = convert(tmp_path / "plain", tmp_path / "nf4", "--to", "nf4", "--experts", "nf4", *MIXED)
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype="auto").eval()
    kinds = [type(module) for module in model.modules()]
    assert kinds.count(ExpertWeights) == 2 * sum("Experts" in kind.__name__ for kind in kinds if kind is not ExpertWeights)
    assert isinstance(model.lm_head, Linear4bit)
    assert isinstance(model.model.embed_tokens.weight, QuantizedWeight)
    check_logits(model, dequantized(plain, model))


@pytest.mark.parametrize("to", ["nf4", "fp4", "int8"])
@pytest.mark.parametrize("tied", [False, True])
def test_load_of_what_bitsandbytes_reads(tmp_path, to, tied):
    plain = save(tmp_path / "plain", "Llama", tie_word_embeddings=tied)
    model = nibble.load(convert(tmp_path / "plain", tmp_path / to, "--to", to)).eval()
    assert sum(isinstance(module, Linear4bit | LinearInt8) for module in model.modules()) == 2 * 7
    check_logits(model, dequantized(plain, model))


def test_a_head_tied_to_quantized_embeddings(tmp_path):
    plain = save(tmp_path / "plain", "Llama", tie_word_embeddings=True)
    options = ("--to", "nf4", "--embeddings", "nf4", "--allow-nibble-only")
    model = nibble.load(convert(tmp_path / "plain", tmp_path / "nf4", *options)).eval()
    assert isinstance(model.lm_head, Linear4bit)
    check_logits(model, dequantized(plain, model))


def test_nothing_is_reported_as_unexpected_or_missing(tmp_path):
    save(tmp_path / "plain", "Mixtral")
    directory = convert(tmp_path / "plain", tmp_path / "nf4", "--to", "nf4", "--experts", "nf4", *MIXED)
    _, said = transformers.AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True)
    assert not any(said[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))


def test_experts_that_are_missing_are_named(tmp_path):
    save(tmp_path / "plain", "Mixtral")
    options = ("--to", "nf4", "--experts", "nf4", "--skip", ".*layers.1.*experts.3.*", *MIXED)
    directory = convert(tmp_path / "plain", tmp_path / "nf4", *options)
    with pytest.raises(nibble.BadInputError, match="layers.1.*the experts of its layer are 3 .*the model's are 4"):
        nibble.load(directory)


def test_other_tools_directories_are_refused(tmp_path):
    save(tmp_path / "plain", "Llama")
    directory = convert(tmp_path / "plain", tmp_path / "fp8", "--to", "fp8")
    with pytest.raises(nibble.BadInputError, match="is quantized by 'compressed-tensors'"):
        nibble.load(directory)


def test_a_config_for_other_shapes_is_refused(tmp_path):
    save(tmp_path / "plain", "Llama")
    directory = convert(tmp_path / "plain", tmp_path / "nf4", "--to", "nf4")
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"intermediate_size": 192}))
    with pytest.raises(nibble.BadInputError, match=r"mlp.*: is \[.*\], the model's weight is \[.*192.*\]"):
        nibble.load(directory)


def test_weights_of_layers_that_the_model_lacks_are_refused(tmp_path):
    save(tmp_path / "plain", "Llama")
    directory = convert(tmp_path / "plain", tmp_path / "nf4", "--to", "nf4")
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1}))
    with pytest.raises(nibble.BadInputError, match=r"layers\.1\..*: LlamaForCausalLM has no weight of this name"):
        nibble.load(directory)


def test_experts_of_other_columns_are_refused(tmp_path):
    save(tmp_path / "plain", "Mixtral")
    options = ("--to", "nf4", "--experts", "nf4", "--skip", r".*\.(w1|w3|[qkvo]_proj)\.weight", "--allow-nibble-only")
    directory = convert(tmp_path / "plain", tmp_path / "nf4", *options)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"intermediate_size": 192}))
    with pytest.raises(nibble.BadInputError, match=r"w2.*: is \[64, 128\], the model's experts have 192 columns"):
        nibble.load(directory)
