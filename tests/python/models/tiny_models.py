"""Tiny transformers models, plain, quantized, and dequantized again."""

import os
import pathlib
import subprocess

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
