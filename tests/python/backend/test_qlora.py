"""QLoRA scripts as they are written for bitsandbytes, with nibble behind it.

What they compute is compared with the same script over the dequantized model.
"""

import os
import pathlib
import subprocess

import pytest
import torch

pytest.importorskip("bitsandbytes")
peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")
import bitsandbytes
from nibble import backend

PROGRAM = pathlib.Path(os.environ.get("NIBBLE", pathlib.Path(__file__).parents[3] / "build/release/nibble"))
# Rows of 96 and 208 weights, which are no whole blocks of 64.
CONFIG = transformers.LlamaConfig(
    vocab_size=128, hidden_size=96, intermediate_size=208, num_hidden_layers=1, num_attention_heads=4,
    num_key_value_heads=2,
)  # fmt: skip
FOUR_BIT = dict(load_in_4bit=True, bnb_4bit_compute_dtype=torch.float32)
CONFIGS = {
    "nf4": FOUR_BIT | dict(bnb_4bit_quant_type="nf4"),
    "nf4, double quantization": FOUR_BIT | dict(bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True),
    "fp4, stored as bf16": FOUR_BIT | dict(bnb_4bit_quant_type="fp4", bnb_4bit_quant_storage=torch.bfloat16),
    "int8": dict(load_in_8bit=True),
}
IDS = torch.arange(34).reshape(2, 17) * 7 % 128


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    directory = tmp_path_factory.mktemp("plain")
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(CONFIG).save_pretrained(directory)
    return directory


@pytest.fixture(autouse=True)
def enabled():
    assert backend.enable()
    yield
    backend.disable()


def dequantized(model, plain):
    """The model without bitsandbytes, with the weights that its layers stand for."""
    other = transformers.AutoModelForCausalLM.from_pretrained(plain)
    for name, module in model.named_modules():
        if isinstance(module, bitsandbytes.nn.Linear4bit):
            weight = bitsandbytes.functional.dequantize_4bit(module.weight.data, module.weight.quant_state)
        elif isinstance(module, bitsandbytes.nn.Linear8bitLt):
            weight = torch.ops.nibble.dequantize_int8(module.weight.data, module.state_dict()["SCB"], torch.float32)
        else:
            continue
        other.get_submodule(name).weight.data = weight.float()
    return other


def train(model, steps=2):
    model = peft.prepare_model_for_kbit_training(model)
    torch.manual_seed(1)
    config = peft.LoraConfig(r=4, target_modules="all-linear", init_lora_weights="gaussian", task_type="CAUSAL_LM")
    model = peft.get_peft_model(model, config).train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    losses = []
    for _ in range(steps):
        loss = model(input_ids=IDS, labels=IDS).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    with torch.no_grad():
        return losses, model.eval()(IDS).logits


def operators_of(function):
    with torch.profiler.profile() as profile:
        function()
    return {event.name for event in profile.events() if event.name.startswith("nibble::")}


def check(model, plain, tolerance):
    reference = dequantized(model, plain)
    losses, logits = train(model)
    expected, expected_logits = train(reference)
    assert losses == pytest.approx(expected, rel=tolerance) and losses[1] < losses[0]
    torch.testing.assert_close(logits, expected_logits, rtol=0, atol=tolerance * expected_logits.abs().max().item())


@pytest.mark.parametrize("kind", CONFIGS)
def test_quantized_while_it_is_loaded(plain, kind):
    config = transformers.BitsAndBytesConfig(**CONFIGS[kind])
    model = transformers.AutoModelForCausalLM.from_pretrained(plain, quantization_config=config)
    called = operators_of(lambda: model(IDS))
    assert ("nibble::quantize_int8" if kind == "int8" else "nibble::linear_4bit") in called
    check(model, plain, 2e-2 if kind == "int8" else 1e-4)  # int8: bitsandbytes quantizes activations, too


@pytest.mark.parametrize("to", ["nf4", "int8"])
def test_from_a_directory_that_is_quantized(plain, tmp_path, to):
    done = subprocess.run(
        [PROGRAM, "convert", plain, tmp_path / to, "--to", to, "--progress", "none"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / to)
    check(model, plain, 2e-2 if to == "int8" else 1e-4)


def test_generation(plain):
    config = transformers.BitsAndBytesConfig(**CONFIGS["nf4, double quantization"])
    model = transformers.AutoModelForCausalLM.from_pretrained(plain, quantization_config=config).eval()
    ids = model.generate(IDS[:1], max_new_tokens=4, do_sample=False)
    assert torch.equal(ids, dequantized(model, plain).generate(IDS[:1], max_new_tokens=4, do_sample=False))
