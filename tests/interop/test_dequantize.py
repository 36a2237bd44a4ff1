"""Plain weights again: the bits of bitsandbytes' own dequantization, loaded by transformers without any quantization."""

import json

import bitsandbytes
import bitsandbytes.functional as functional
import numpy as np
import pytest
import stored
import torch
import transformers
from loading import BITSANDBYTES, first_output, load, quantization_config, quantize_on_the_fly, raw
from models import DTYPES, save_llama, tokens
from transformers import BitsAndBytesConfig

NAMES = {"fp32": "F32", "bf16": "BF16", "fp16": "F16"}


@pytest.fixture
def dequantize(nibble):
    def run(source, to, *options):
        out = nibble.output(source)
        done = nibble.run("dequantize", source, out, "--to", to, "--progress", "none", *options)
        assert done.returncode == 0, done.stderr
        return out

    return run


def own_weights(model):
    """{name: weight} of the quantized layers, as bitsandbytes decodes them: 4 bits to the type from before, int8 to
    fp32."""
    weights = {}
    for name, module in model.named_modules():
        if isinstance(module, bitsandbytes.nn.Linear4bit):
            weights[name] = functional.dequantize_4bit(module.weight.data, module.weight.quant_state)
        elif isinstance(module, bitsandbytes.nn.Linear8bitLt):
            weights[name] = functional.int8_vectorwise_dequant(module.weight.data, module.weight.SCB)
    return weights


# Rows of 128 and 344 weights, where bitsandbytes' own decoding is right.
@pytest.mark.parametrize("dtype", ["bf16", "fp32", "fp16"])
@pytest.mark.parametrize("codec", ["nf4", "fp4", "int8"])
def test_the_bits_are_those_of_bitsandbytes(nibble, dequantize, tmp_path, codec, dtype):
    directory = nibble.convert(save_llama(tmp_path / "m", dtype), codec)
    weights = own_weights(load(directory))
    assert len(weights) == 14
    plain = load(dequantize(directory, dtype))
    assert type(plain.model.layers[0].mlp.up_proj) is torch.nn.Linear
    for name, weight in weights.items():
        own = weight.to(DTYPES[dtype]) + 0  # for some rows, bitsandbytes decodes code 8 of FP4 to -0; its map says 0
        assert torch.equal(raw(plain.get_submodule(name).weight), raw(own)), name


# What transformers saves itself, in another storage type, with its own nested absmax.
@pytest.mark.parametrize("storage", [torch.uint8, torch.bfloat16, torch.float32])
def test_directories_of_transformers(dequantize, tmp_path, storage):
    config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
                                bnb_4bit_quant_storage=storage)  # fmt: skip
    model = quantize_on_the_fly(save_llama(tmp_path / "m", "bf16"), config, dtype=torch.bfloat16)
    model.save_pretrained(tmp_path / "saved")
    plain = load(dequantize(tmp_path / "saved", "bf16"))
    for name, weight in own_weights(model).items():
        assert torch.equal(raw(plain.get_submodule(name).weight), raw(weight)), name


@pytest.mark.parametrize("to", NAMES)
@pytest.mark.parametrize("codec", BITSANDBYTES)
def test_the_formula_in_numpy(nibble, dequantize, tmp_path, codec, to):
    directory = nibble.convert(save_llama(tmp_path / "m", "bf16"), codec, "--max-shard-size", "100kB")
    before, after = stored.read(directory), stored.read(dequantize(directory, to))
    for name, entry in after.items():
        assert entry.dtype == NAMES[to]
        weights = stored.decode(before, name)
        expected = torch.from_numpy(np.ascontiguousarray(weights)).to(DTYPES[to])
        assert raw(expected).numpy().tobytes() == entry.data, name
    assert sorted(after) == sorted(stored.read(tmp_path / "m"))


def test_nothing_remains_of_the_quantization(nibble, dequantize, tmp_path):
    source = save_llama(tmp_path / "m", "bf16")
    out = dequantize(nibble.convert(source, "nf4"), "fp16")
    assert quantization_config(out) is None
    config, before = (json.loads((d / "config.json").read_text()) for d in (out, source))
    assert config.pop("torch_dtype") == config.pop("dtype") == "float16"
    before.pop("dtype"), before.pop("torch_dtype", None)
    assert config == before
    model = load(out)
    assert {p.dtype for p in model.parameters()} == {torch.float16}
    assert not hasattr(model, "hf_quantizer")


# The outputs of the plain model are those of the quantized one in fp32, which decodes before it multiplies.
def test_outputs_stay(nibble, dequantize, tmp_path):
    directory = nibble.convert(save_llama(tmp_path / "m", "fp32"), "nf4")
    inputs = {"input_ids": tokens()}
    expected = first_output(load(directory), inputs)
    found = first_output(load(dequantize(directory, "fp32")), inputs)
    assert torch.allclose(found, expected, rtol=0, atol=1e-4 * expected.abs().max().item())


@pytest.mark.parametrize("codec", ["nf4", "fp4", "int8", "fp8"])
def test_codes_come_back(nibble, dequantize, tmp_path, codec):
    directory = nibble.convert(save_llama(tmp_path / "m", "bf16"), codec, *nibble.plain_absmax(codec))
    again = nibble.convert(dequantize(directory, "bf16"), codec, *nibble.plain_absmax(codec))
    before, after = stored.read(directory), stored.read(again)
    for name, entry in before.items():
        if codec == "fp4" and entry.dtype == "U8" and name.endswith(".weight"):  # code 8 is a second 0
            assert np.array_equal(stored.decode(before, name), stored.decode(after, name)), name
        elif codec != "fp8" or not name.endswith("_scale"):
            assert entry == after[name], name


def test_conv1d_is_transposed_back(nibble, dequantize, tmp_path):
    config = transformers.GPT2Config(n_embd=128, n_layer=1, n_head=4, vocab_size=256, n_positions=64)
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config).eval()
    model.save_pretrained(tmp_path / "m")
    directory = nibble.convert(tmp_path / "m", "nf4")
    plain = load(dequantize(directory, "fp32"))
    weights = own_weights(load(directory))
    assert weights
    for name, weight in weights.items():
        assert torch.equal(plain.get_submodule(name).weight, weight.t().contiguous()), name


# gpt-oss has its experts as one tensor, which only nibble quantizes.
def test_experts_are_put_together(nibble, dequantize, tmp_path):
    config = transformers.GptOssConfig(hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
                                       num_key_value_heads=1, head_dim=32, num_local_experts=12, num_experts_per_tok=2,
                                       vocab_size=128, layer_types=["full_attention"])  # fmt: skip
    torch.manual_seed(0)
    model = transformers.GptOssForCausalLM(config).eval()
    model.save_pretrained(tmp_path / "m")
    directory = nibble.convert(tmp_path / "m", "nf4", "--experts", "nf4", "--allow-nibble-only")
    plain = load(dequantize(directory, "fp32"))
    coded = stored.read(directory)
    for leaf in ("gate_up_proj", "down_proj"):
        name = f"model.layers.0.mlp.experts.{leaf}"
        parts = [stored.decode(coded, f"model.layers.0.mlp.experts.{e}.{leaf}.weight") for e in range(12)]
        assert np.array_equal(plain.get_parameter(name).detach().numpy(), np.stack(parts)), name
        distance = (plain.get_parameter(name) - model.get_parameter(name)).norm() / model.get_parameter(name).norm()
        assert distance < 0.15


def test_plain_input_is_refused(nibble, tmp_path):
    done = nibble.run("dequantize", save_llama(tmp_path / "m"), tmp_path / "out", "--to", "bf16")
    assert done.returncode == 3
    assert done.stderr == f"error: {tmp_path}/m: has no quantized tensor: there is nothing to dequantize\n"
    assert not (tmp_path / "out").exists()
