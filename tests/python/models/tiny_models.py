"""Tiny transformers models, plain, quantized, and dequantized again."""

import json
import os
import pathlib
import subprocess

import nibble
import pytest
import torch
import transformers

PROGRAM = pathlib.Path(os.environ.get("NIBBLE", pathlib.Path(__file__).parents[3] / "build/release/nibble"))
SMALL = dict(vocab_size=256, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
LATENT = dict(q_lora_rank=32, kv_lora_rank=32, qk_rope_head_dim=16, qk_nope_head_dim=16, v_head_dim=16)
ROUTED = dict(n_routed_experts=8, n_group=2, topk_group=1, first_k_dense_replace=1, n_shared_experts=1)
HYBRID = dict(mamba_n_heads=8, mamba_d_head=16, mamba_d_state=16, mamba_n_groups=1, mamba_chunk_size=16)
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
    "GraniteMoeHybrid": transformers.GraniteMoeHybridConfig(
        **SMALL, **HYBRID, intermediate_size=64, num_local_experts=4, num_experts_per_tok=2, tie_word_embeddings=False,
        layer_types=["mamba", "attention"], shared_intermediate_size=64,
    ),
}  # fmt: skip
FP32 = {"dtype": torch.float32, "compute_dtype": torch.float32}
MIXED = ("--embeddings", "int8", "--lm-head", "nf4", "--allow-nibble-only")


def save(directory, name, **changes):
    torch.manual_seed(0)
    config = CONFIGS[name].__class__.from_dict(CONFIGS[name].to_dict() | changes)
    model = getattr(transformers, f"{name}ForCausalLM")(config).to(torch.bfloat16).eval()
    model.save_pretrained(directory)
    return model


def run(*arguments):
    done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def convert(source, target, *options):
    run("convert", source, target, *options)
    return target


def dequantized(directory):
    """The plain model in fp32 with the weights that a quantized directory stands for. The program dequantizes them, and
    transformers puts each in its place: nothing of nibble's loading is in it."""
    plain = directory.with_name("dequantized")
    run("dequantize", directory, plain, "--to", "fp32")
    model = transformers.AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32).eval()
    if hasattr(model.config, "_experts_implementation"):
        model.config._experts_implementation = "eager"
    return model


def check_logits(model, expected):
    """Both in fp32, where they differ by 1e-6 at most, and by 4e-3 at least if gate and up are swapped. bf16 hides that
    between its roundings, and lets a router choose other experts."""
    ids = torch.arange(34).reshape(2, 17) * 7 % 256
    with torch.inference_mode():
        torch.testing.assert_close(model(ids).logits, expected(ids).logits, rtol=0, atol=1e-3)


def change_json(file, **changes):
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def refused(says, path, kind=nibble.BadInputError, **options):
    """nibble.load() says why it does not load this, in these words."""
    with pytest.raises(kind) as caught:
        nibble.load(path, **options)
    assert str(caught.value) == says
