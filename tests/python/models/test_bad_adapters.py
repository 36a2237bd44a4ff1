"""nibble.load() of adapters that it cannot load: one sentence that names file, tensor, fact and limit."""

import shutil

import nibble
import pytest
import safetensors.torch
import torch
import transformers
from tiny_models import FP32, change_json, check_logits, convert, dequantized, refused, save

peft = pytest.importorskip("peft")

EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
Q = "base_model.model.model.layers.{}.self_attn.q_proj.lora_{}.weight"
fused_experts = pytest.mark.skipif(transformers.__version__ < "5", reason="transformers 4 has a module for each expert")


@pytest.fixture(scope="module")
def nf4(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    save(folder / "plain", "Llama")
    return convert(folder / "plain", folder / "nf4", "--to", "nf4")


def adapter(folder, name, target, options=None, **changes):
    model = save(folder / "base", name, **changes)
    options = {"init_lora_weights": False} | (options or {})
    config = peft.LoraConfig(r=4, target_modules=target, task_type="CAUSAL_LM", **options)
    peft.get_peft_model(model, config).save_pretrained(folder / "adapter")
    return folder / "adapter"


@pytest.fixture(scope="module")
def of_q(tmp_path_factory):
    return adapter(tmp_path_factory.mktemp("of_q"), "Llama", ["q_proj"])


@pytest.fixture
def directory(of_q, tmp_path):
    return shutil.copytree(of_q, tmp_path / "adapter")


def change_config(directory, **changes):
    change_json(directory / "adapter_config.json", **changes)


def change_tensors(directory, change):
    file = directory / "adapter_model.safetensors"
    state = safetensors.torch.load_file(file)
    safetensors.torch.save_file(change(state), file, {"format": "pt"})
    return file


def test_an_adapter_of_this_base(nf4, tmp_path):
    directory = adapter(tmp_path, "Llama", "all-linear")
    ids = torch.arange(8)[None]
    adapted = nibble.load(nf4, adapter=directory)
    assert type(adapted).__name__ == "PeftModelForCausalLM"
    assert not any(parameter.requires_grad for name, parameter in adapted.named_parameters() if "lora" in name)
    with torch.inference_mode():
        assert not torch.equal(adapted(ids).logits, nibble.load(nf4)(ids).logits)


def test_adapters_of_other_bases(nf4, tmp_path):
    directory = adapter(tmp_path / "wide", "Llama", ["down_proj"], intermediate_size=192)
    file, of = directory / "adapter_model.safetensors", "base_model.model.model.layers"
    refused(
        f"{file}: tensor '{of}.0.mlp.down_proj.lora_A.weight': is [4, 192], and 'model.layers.0.mlp.down_proj' of the "
        "base has 128 columns, so the adapter is for another base",
        nf4, adapter=directory,
    )  # fmt: skip
    directory = adapter(tmp_path / "tall", "Llama", ["up_proj"], intermediate_size=192)
    file = directory / "adapter_model.safetensors"
    refused(
        f"{file}: tensor '{of}.0.mlp.up_proj.lora_B.weight': is [192, 4], and 'model.layers.0.mlp.up_proj' of the base "
        "has 128 rows, so the adapter is for another base",
        nf4, adapter=directory,
    )  # fmt: skip
    directory = adapter(tmp_path / "deep", "Llama", ["q_proj"], num_hidden_layers=3)
    file = directory / "adapter_model.safetensors"
    refused(
        f"{file}: tensor '{of}.2.self_attn.q_proj.lora_A.weight': LlamaForCausalLM has no "
        "'model.layers.2.self_attn.q_proj', so the adapter is for another base",
        nf4, adapter=directory,
    )  # fmt: skip


def test_adapters_that_are_not_whole(nf4, tmp_path):
    refused(f"{nf4}: has no adapter_config.json, so it is not an adapter that nibble can load", nf4, adapter=nf4)
    directory = adapter(tmp_path, "Llama", ["q_proj"])
    file = directory / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(nibble.BadInputError, match="adapter_model.safetensors: header ends at byte .*, file has 100$"):
        nibble.load(nf4, adapter=directory)
    file.unlink()
    says = f"{directory}: has no adapter_model.safetensors, so it is not an adapter that nibble can load"
    refused(says, nf4, adapter=directory)


# --- every tensor has a place, and every place a tensor ---------------------------------------------------------------


@pytest.mark.parametrize("target, options", [
    (["q_proj"], {"use_dora": True}),
    (["q_proj"], {"modules_to_save": ["lm_head"]}),
    (["q_proj"], {"trainable_token_indices": [1, 2]}),
    (["q_proj", "embed_tokens"], {"rank_pattern": {"layers.0.self_attn.q_proj": 2}, "bias": "all"}),
])  # fmt: skip
def test_what_peft_saves_is_loaded_as_peft_loads_it(nf4, tmp_path, target, options):
    directory = adapter(tmp_path, "Llama", target, options)
    expected = peft.PeftModel.from_pretrained(nibble.load(nf4, **FP32), directory)
    check_logits(nibble.load(nf4, adapter=directory, **FP32), expected)


def test_tensors_with_a_foreign_prefix(nf4, directory):
    file = change_tensors(directory, lambda state: {f"module.{name}": tensor for name, tensor in state.items()})
    says = f"{file}: tensor 'module.{Q.format(0, 'A')}': has no place in the model with this adapter_config.json"
    refused(says, nf4, adapter=directory)


@pytest.mark.parametrize("kept, missing", [("lora_A", Q.format(0, "B")), ("layers.0", Q.format(1, "A"))])
def test_tensors_that_are_missing(nf4, directory, kept, missing):
    file = change_tensors(directory, lambda state: {name: state[name] for name in state if kept in name})
    says = f"{file}: tensor '{missing}': is missing, base and adapter_config.json ask for it"
    refused(says, nf4, adapter=directory)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_values_that_are_not_finite(nf4, directory, value):
    def change(state):
        state[Q.format(1, "B")][3, 1] = float(value)
        return state

    file = change_tensors(directory, change)
    refused(f"{file}: tensor '{Q.format(1, 'B')}': element 13 is {value}", nf4, adapter=directory)


@pytest.mark.parametrize("shape", [[], [4], [4, 1, 64], [8, 64]])
def test_factors_of_other_shapes(nf4, directory, shape):
    file = change_tensors(directory, lambda state: state | {Q.format(0, "A"): torch.ones(shape)})
    says = f"{file}: tensor '{Q.format(0, 'A')}': is {shape}, base and adapter_config.json make it [4, 64]"
    refused(says, nf4, adapter=directory)


def test_a_rank_unlike_that_of_the_tensors(nf4, directory):
    change_config(directory, r=8)
    file = directory / "adapter_model.safetensors"
    says = f"{file}: tensor '{Q.format(0, 'A')}': is [4, 64], base and adapter_config.json make it [8, 64]"
    refused(says, nf4, adapter=directory)


@pytest.mark.parametrize("target, options, name, found, needed", [
    (["q_proj", "embed_tokens"], {}, "model.embed_tokens.lora_embedding_A", [4, 300], [4, 256]),
    (["q_proj"], {"modules_to_save": ["lm_head"]}, "lm_head.weight", [300, 64], [256, 64]),
])  # fmt: skip
def test_another_vocabulary(nf4, tmp_path, target, options, name, found, needed):
    directory = adapter(tmp_path, "Llama", target, options, vocab_size=300)
    says = (
        f"{directory}/adapter_model.safetensors: tensor 'base_model.model.{name}': is {found}, "
        f"base and adapter_config.json make it {needed}"
    )
    refused(says, nf4, adapter=directory)


# --- what is quantized ------------------------------------------------------------------------------------------------


@fused_experts
@pytest.mark.parametrize("name", ["Mixtral", "Qwen3Moe", "GptOss"])
def test_adapters_of_quantized_experts(tmp_path, name):
    directory = adapter(tmp_path, name, ["q_proj"], {"target_parameters": EXPERTS})
    options = ("--to", "nf4", "--experts", "nf4", "--allow-nibble-only")
    base = convert(tmp_path / "base", tmp_path / "nf4", *options)
    experts = "model.layers.0.mlp.experts"
    says = (
        f"{directory}/adapter_model.safetensors: tensor 'base_model.model.{experts}.base_layer.lora_A.weight': is for "
        f"a quantized parameter of '{experts}', which target_parameters names and peft cannot adapt; nibble merge can "
        "merge the adapter"
    )
    refused(says, base, adapter=directory)


@fused_experts
@pytest.mark.parametrize("name", ["Mixtral", "GptOss"])
def test_adapters_of_experts_that_are_not_quantized(tmp_path, name):
    directory = adapter(tmp_path, name, ["q_proj"], {"target_parameters": EXPERTS})
    base = convert(tmp_path / "base", tmp_path / "nf4", "--to", "nf4")
    expected = peft.PeftModel.from_pretrained(dequantized(base), directory)
    check_logits(nibble.load(base, adapter=directory, **FP32), expected)


@pytest.mark.parametrize("to", ["nf4", "int8"])
def test_a_linear_layer_as_a_parameter(tmp_path, to):
    """peft would add the update to the codes of an int8 weight, whose shape fits."""
    directory = adapter(tmp_path, "Llama", ["q_proj"], {"target_parameters": ["up_proj.weight"]})
    base = convert(tmp_path / "base", tmp_path / to, "--to", to)
    layer = "model.layers.0.mlp.up_proj"
    says = (
        f"{directory}/adapter_model.safetensors: tensor 'base_model.model.{layer}.lora_A.weight': is for a quantized "
        f"parameter of '{layer}', which target_parameters names and peft cannot adapt; nibble merge can merge the "
        "adapter"
    )
    refused(says, base, adapter=directory)


@pytest.mark.parametrize("to", ["nf4", "int8"])
@pytest.mark.parametrize("target, options, name", [
    (["q_proj"], {"modules_to_save": ["lm_head"]}, "lm_head.weight"),
    (["q_proj", "embed_tokens"], {}, "model.embed_tokens.base_layer.weight"),
])  # fmt: skip
def test_adapters_that_replace_quantized_weights(tmp_path, to, target, options, name):
    directory = adapter(tmp_path, "Llama", target, options)
    mixed = ("--embeddings", to, "--lm-head", to, "--allow-nibble-only")
    base = convert(tmp_path / "base", tmp_path / to, "--to", to, *mixed)
    says = (
        f"{directory}/adapter_model.safetensors: tensor 'base_model.model.{name}': replaces a weight that is "
        "quantized; nibble merge can merge the adapter"
    )
    refused(says, base, adapter=directory)


# --- adapter_config.json ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text, says", [
    ("{", "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
    ("[]", "is not a JSON object"),
    ("{}", "has no peft_type, nibble.load() takes LORA"),
])  # fmt: skip
def test_configurations_that_are_none(nf4, directory, text, says):
    (directory / "adapter_config.json").write_text(text)
    refused(f"{directory}/adapter_config.json: {says}", nf4, adapter=directory)


@pytest.mark.parametrize("changes, says", [
    ({"peft_type": "XX"}, "peft_type is 'XX', nibble.load() takes LORA"),
    ({"peft_type": "LOHA"}, "peft_type is 'LOHA', nibble.load() takes LORA"),
    ({"peft_type": 3}, "peft_type is 3, nibble.load() takes LORA"),
    ({"r": 0}, "`r` should be a positive integer value but the value passed is 0"),
    ({"r": "4"}, "'<=' not supported between instances of 'str' and 'int'"),
    ({"target_modules": ["nowhere"]}, "Target modules {'nowhere'} not found in the base model. Please check the target "
                                      "modules and try again."),
    ({"target_parameters": 3}, "'target_parameters' is not a list of names"),
])  # fmt: skip
def test_fields_that_make_no_sense(nf4, directory, changes, says):
    change_config(directory, **changes)
    refused(f"{directory}/adapter_config.json: {says}", nf4, adapter=directory)
