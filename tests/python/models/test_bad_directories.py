"""nibble.load() of what it cannot load: one sentence that names file, tensor, fact and limit.

Other cases are beside what they are about, in test_loading.py.
"""

import json
import shutil

import nibble
import pytest
import safetensors.torch
import torch
from tiny_models import convert, save


@pytest.fixture(scope="module")
def nf4(tmp_path_factory):
    folder = tmp_path_factory.mktemp("refused")
    save(folder / "plain", "Llama")
    return convert(folder / "plain", folder / "nf4", "--to", "nf4")


@pytest.fixture
def directory(nf4, tmp_path):
    return shutil.copytree(nf4, tmp_path / "nf4")


def refused(says, path, kind=nibble.BadInputError, **options):
    with pytest.raises(kind) as caught:
        nibble.load(path, **options)
    assert str(caught.value) == says


def change_config(directory, **changes):
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def change_tensors(directory, change):
    state = safetensors.torch.load_file(directory / "model.safetensors")
    change(state)
    safetensors.torch.save_file(state, directory / "model.safetensors", {"format": "pt"})


def test_a_plain_tensor_that_is_missing(directory):
    change_tensors(directory, lambda state: state.pop("model.norm.weight"))
    refused(f"{directory}: tensor 'model.norm.weight': is missing, LlamaForCausalLM needs it", directory)


def test_a_quantized_weight_that_is_missing(directory):
    name = "model.layers.1.mlp.up_proj.weight"

    def drop(state):
        for part in [part for part in state if part.startswith(name)]:
            del state[part]

    change_tensors(directory, drop)
    refused(f"{directory}: tensor '{name}': is missing, LlamaForCausalLM needs it", directory)


def test_a_plain_tensor_of_another_shape(directory):
    change_tensors(directory, lambda state: state.update({"model.norm.weight": torch.ones(7)}))
    refused(f"{directory}: tensor 'model.norm.weight': is [7], the model's weight is [64]", directory)


def test_codes_and_absmax_of_other_sizes(directory):
    name, file = "model.layers.0.mlp.up_proj.weight", directory / "model.safetensors"
    codes = safetensors.torch.load_file(file)[name]
    change_tensors(directory, lambda state: state.update({name: codes[:-4].clone()}))
    refused(f"{file}: tensor '{name}': weight: has 4092 bytes, and [128, 64] weights need 4096", directory)
    absmax = safetensors.torch.load_file(file)[name + ".absmax"]
    change_tensors(directory, lambda state: state.update({name: codes, name + ".absmax": absmax[:-1].clone()}))
    refused(f"{file}: tensor '{name}': weight.absmax: has 127 values of torch.uint8, not 128 of torch.uint8", directory)


def test_configs_that_do_not_say_what_the_tensors_say(directory):
    change_config(directory, quantization_config=None)
    with pytest.raises(
        nibble.BadInputError, match="nf4: config.json has no quantization_config, and 'model.*' is of a "
    ):
        nibble.load(directory)


def test_configs_of_other_tools(directory):
    change_config(directory, quantization_config={"quant_method": "gptq", "bits": 4})
    file = directory / "config.json"
    refused(f"{file}: quantized already: quant_method 'gptq' is not supported", directory)
    change_config(directory, quantization_config={"quant_method": "fp8"})
    refused(f"{directory}: is quantized by 'fp8'; nibble loads what nibble or bitsandbytes quantized", directory)


def test_configs_that_transformers_does_not_take(directory):
    change_config(directory, model_type="none_that_there_is")
    with pytest.raises(nibble.BadInputError, match="nf4: config.json: .*`none_that_there_is`") as caught:
        nibble.load(directory)
    assert "\n" not in str(caught.value)
    change_config(directory, model_type="llama", architectures=["os"])
    refused(f"{directory}: config.json names ['os'], which transformers does not have", directory)


def test_a_file_is_no_directory(nf4):
    file = nf4 / "model.safetensors"
    refused(f"{file}: is a file, not the directory of a model", file)


@pytest.mark.parametrize("dtype", [torch.int8, "int4", torch.float8_e4m3fn, 7])
def test_types_that_layers_cannot_multiply_in(nf4, dtype):
    says = f"compute_dtype is {dtype}, not one of float32, bfloat16, float16, float64"
    refused(says, nf4, nibble.UsageError, compute_dtype=dtype)


def test_types_that_a_model_cannot_have(nf4):
    with pytest.raises(ValueError, match="LlamaForCausalLM cannot be instantiated under .*int8.* floating"):
        nibble.load(nf4, dtype=torch.int8)


def test_devices_that_do_not_exist(nf4, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for device in ("cuda:2", torch.device("cuda", 2), {"model": "cpu", "lm_head": 2}):
        says = "device_map has cuda:2, and there are 2 CUDA devices that torch can use"
        refused(says, nf4, nibble.UsageError, device_map=device)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    says = "device_map has cuda, and there are 0 CUDA devices that torch can use"
    refused(says, nf4, nibble.UsageError, device_map="cuda")
    says = "device_map has disk, from which nibble maps quantized weights to the CPU anyway"
    refused(says, nf4, nibble.UsageError, device_map={"": "disk"})


def test_any_device_is_the_cpu_where_there_is_no_other(nf4, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    pytest.importorskip("accelerate")
    assert nibble.load(nf4, device_map="auto").device == torch.device("cpu")


# --- adapters ---------------------------------------------------------------------------------------------------------


def adapter(folder, name, target, **changes):
    peft = pytest.importorskip("peft")
    model = save(folder / "base", name, **changes)
    config = peft.LoraConfig(r=4, target_modules=target, task_type="CAUSAL_LM", init_lora_weights=False)
    peft.get_peft_model(model, config).save_pretrained(folder / "adapter")
    return folder / "adapter"


def test_an_adapter_of_this_base(nf4, tmp_path):
    directory = adapter(tmp_path, "Llama", "all-linear")
    ids = torch.arange(8)[None]
    with torch.inference_mode():
        adapted = nibble.load(nf4, adapter=directory)
        assert type(adapted).__name__ == "PeftModelForCausalLM"
        assert not torch.equal(adapted(ids).logits, nibble.load(nf4)(ids).logits)


def test_adapters_of_other_bases(nf4, tmp_path):
    directory = adapter(tmp_path / "wide", "Llama", ["down_proj"], intermediate_size=192)
    file, of = directory / "adapter_model.safetensors", "base_model.model.model.layers"
    refused(
        f"{file}: tensor '{of}.0.mlp.down_proj.lora_A.weight': is [4, 192], and 'model.layers.0.mlp.down_proj' of the base "
        "has 128 columns, so the adapter is for another base",
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
        f"{file}: tensor '{of}.2.self_attn.q_proj.lora_A.weight': LlamaForCausalLM has no 'model.layers.2.self_attn.q_proj', "
        "so the adapter is for another base",
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
