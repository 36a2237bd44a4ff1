"""Codes without the tensors that say what they stand for, or with damaged ones: nibble.load() refuses in one sentence
what nibble.dequantize() refuses."""

import json
import re
import shutil

import nibble
import pytest
import safetensors.torch
import torch
import transformers
from tiny_models import MIXED, convert, save

WEIGHT = "model.layers.0.mlp.up_proj.weight"
STATE = f"{WEIGHT}.quant_state.bitsandbytes__nf4"
FORMATS = {"nf4": ("--to", "nf4"), "int8": ("--to", "int8"), "mixed": ("--to", "nf4", *MIXED)}


@pytest.fixture(scope="module")
def quantized(tmp_path_factory):
    folder = tmp_path_factory.mktemp("quantized")
    save(folder / "plain", "Llama")
    return {name: convert(folder / "plain", folder / name, *options) for name, options in FORMATS.items()}


@pytest.fixture
def damaged(quantized, tmp_path):
    """Makes a directory in one of the formats whose tensors `change` has changed."""

    def make(name, change):
        directory = shutil.copytree(quantized[name], tmp_path / "damaged")
        state = safetensors.torch.load_file(directory / "model.safetensors")
        change(state)
        safetensors.torch.save_file(state, directory / "model.safetensors", {"format": "pt"})
        return directory

    return make


def refused(says, directory, load=nibble.load):
    with pytest.raises(nibble.BadInputError, match=says) as caught:
        load(directory)
    assert "\n" not in str(caught.value)
    with pytest.raises(nibble.BadInputError):
        nibble.dequantize(directory, directory.with_name("dequantized"), to="fp32")


def tensor_of(text):
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


# --- 4 bits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changed, says", [
    ({"blocksize": 48}, "the blocksize 48, not one of 32, 64"),
    ({"blocksize": 64.0}, "the blocksize 64.0, not one of 32, 64"),
    ({"dtype": "int8"}, "the dtype 'int8', not one of float32"),
    ({"shape": "64"}, "the shape '64', not two dimensions"),
    ({"shape": [10**400, 64]}, "the shape .*, not two dimensions"),
    ({"shape": [64.0, 64]}, r"the shape \[64.0, 64\], not two dimensions"),
    ({"quant_type": "fp4"}, "the quant_type 'fp4', not nf4"),
    ({"nested_blocksize": 64}, "the nested_blocksize 64, not 256"),
    ({"nested_blocksize": "256"}, "the nested_blocksize '256', not 256"),
    ({"nested_offset": None}, "the nested_offset None, not a number that fp32 holds"),
    ({"nested_offset": [1]}, r"the nested_offset \[1\], not a number"),
    ({"nested_offset": "1"}, "the nested_offset '1', not a number"),
    ({"nested_offset": True}, "the nested_offset True, not a number"),
    ({"nested_offset": float("nan")}, "the nested_offset nan, not a number"),
    ({"nested_offset": 1e39}, r"the nested_offset 1e\+39, not a number"),
    ({"nested_offset": 10**400}, "the nested_offset 1000.*000, not a number"),
])  # fmt: skip
def test_a_quant_state_that_nothing_writes(damaged, changed, says):
    def change(state):
        state[STATE] = tensor_of(json.dumps(json.loads(bytes(state[STATE].tolist())) | changed))

    refused(f"model.safetensors: tensor '{WEIGHT}': its quant_state has {says}", damaged("nf4", change))


def test_a_quant_state_of_another_shape_than_the_model(quantized, damaged):
    def change(state):
        state[STATE] = tensor_of(json.dumps(json.loads(bytes(state[STATE].tolist())) | {"shape": [128, 128]}))

    refused(rf"damaged: tensor '{WEIGHT}': is \[128, 128\], the model's weight is", damaged("nf4", change))


@pytest.mark.parametrize("missing", ["quant_type", "blocksize", "dtype", "nested_blocksize"])
def test_a_quant_state_without_a_field(damaged, missing):
    def change(state):
        fields = json.loads(bytes(state[STATE].tolist()))
        del fields[missing]
        state[STATE] = tensor_of(json.dumps(fields))

    refused(f"tensor '{WEIGHT}': its quant_state has no {missing}$", damaged("nf4", change))


@pytest.mark.parametrize("content, says", [
    (tensor_of("[" * 50000), "is not what bitsandbytes writes .*recursion"),
    (tensor_of("[]"), r"is not what bitsandbytes writes \(not a JSON object\)"),
    (torch.full((3,), 255, dtype=torch.uint8), "is not what bitsandbytes writes"),
    (tensor_of("{}").float(), "has 2 values of torch.float32, not at most 65536 of torch.uint8"),
    (torch.full((65537,), 32, dtype=torch.uint8), "has 65537 values of torch.uint8, not at most 65536"),
])  # fmt: skip
def test_a_quant_state_that_is_no_object(damaged, content, says):
    directory = damaged("nf4", lambda state: state.update({STATE: content}))
    refused(f"model.safetensors: tensor '{WEIGHT}': its quant_state {says}", directory)


# --- int8 -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, scb", [
    ("mixed", "model.embed_tokens.SCB"),
    ("int8", "model.layers.1.self_attn.q_proj.SCB"),
])  # fmt: skip
def test_codes_without_absmax(damaged, name, scb):
    directory = damaged(name, lambda state: state.pop(scb))
    weight = scb.replace(".SCB", ".weight")
    says = f"{re.escape(str(directory))}/model.safetensors: tensor '{weight}' holds I8 codes, but has no SCB"
    refused(says, directory)
    if name == "mixed":  # what transformers opens by nibble's quantizer
        refused(says, directory, transformers.AutoModelForCausalLM.from_pretrained)


def test_codes_none_of_which_has_absmax(damaged):
    def change(state):
        for name in [name for name in state if name.endswith((".SCB", ".weight_format"))]:
            del state[name]

    refused("holds I8 codes, but has no SCB or quant_state$", damaged("int8", change))


@pytest.mark.parametrize("dtype, name", [(torch.uint8, "U8"), (torch.int16, "I16"), (torch.int64, "I64")])
def test_codes_in_another_type_without_absmax(damaged, dtype, name):
    def change(state):
        del state[WEIGHT.replace(".weight", ".SCB")]
        state[WEIGHT] = state[WEIGHT].to(dtype)

    with pytest.raises(nibble.BadInputError, match=f"'{WEIGHT}' holds {name} codes, but has no SCB or quant_state$"):
        nibble.load(damaged("int8", change))


@pytest.mark.skipif(transformers.__version__ < "5", reason="transformers 4 has a module for each expert")
@pytest.mark.parametrize("experts", ["[0-9]", "1"])
def test_codes_of_experts_without_absmax(tmp_path, experts):
    save(tmp_path / "plain", "Mixtral")
    options = ("--to", "nf4", "--experts", "int8", *MIXED)
    directory = convert(tmp_path / "plain", tmp_path / "int8", *options)
    state = safetensors.torch.load_file(directory / "model.safetensors")
    kept = {name: t for name, t in state.items() if not re.search(rf"layers\.0.*experts\.{experts}\..*SCB", name)}
    assert len(kept) < len(state)
    safetensors.torch.save_file(kept, directory / "model.safetensors", {"format": "pt"})
    says = r"int8/model.safetensors: tensor 'model.layers.0.*experts.*' holds I8 codes, but has no SCB or quant_state$"
    refused(says, directory)
    refused(says, directory, transformers.AutoModelForCausalLM.from_pretrained)


def test_absmax_without_codes(damaged):
    weight = "model.embed_tokens.weight"
    directory = damaged("mixed", lambda state: state.update({weight: state[weight].half()}))
    refused(f"model.safetensors: tensor '{weight}': weight: is torch.float16, not torch.int8$", directory)


def test_a_weight_format_of_two_values(damaged):
    weight_format = WEIGHT.replace(".weight", ".weight_format")
    directory = damaged("int8", lambda state: state.update({weight_format: torch.zeros(2, dtype=torch.uint8)}))
    refused(f"model.safetensors: tensor '{WEIGHT}': weight: its weight_format has 2 bytes, not 1$", directory)


class WithTable(transformers.LlamaForCausalLM):
    """It has integers that are no weight."""

    def __init__(self, config):
        super().__init__(config)
        self.register_buffer("table", torch.zeros(2, 3, dtype=torch.int8))
        self.post_init()


@pytest.mark.parametrize("name", FORMATS)
def test_integers_that_are_no_codes(damaged, name, monkeypatch):
    monkeypatch.setattr("transformers.WithTable", WithTable, raising=False)
    table = torch.arange(6, dtype=torch.int8).reshape(2, 3)
    directory = damaged(name, lambda state: state.update(table=table))
    config = (directory / "config.json").read_text()
    (directory / "config.json").write_text(config.replace("LlamaForCausalLM", "WithTable"))
    assert torch.equal(nibble.load(directory).table, table)
