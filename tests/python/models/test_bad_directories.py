"""nibble.load() of directories that it cannot load: one sentence that names file, tensor, fact and limit.

Adapters are in test_bad_adapters.py. Other cases are beside what they are about, in test_loading.py.
"""

import json
import re
import shutil

import nibble
import pytest
import safetensors.torch
import torch
import transformers
from nibble.nn import Linear4bit
from tiny_models import change_json, convert, refused, save


@pytest.fixture(scope="module")
def nf4(tmp_path_factory):
    folder = tmp_path_factory.mktemp("refused")
    save(folder / "plain", "Llama")
    return convert(folder / "plain", folder / "nf4", "--to", "nf4")


@pytest.fixture
def directory(nf4, tmp_path):
    return shutil.copytree(nf4, tmp_path / "nf4")


def change_config(directory, **changes):
    change_json(directory / "config.json", **changes)


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
    refused(f"{directory}: config.json names ['os'], which is not a model of transformers", directory)


@pytest.mark.parametrize("names", [3, [3], {"LlamaForCausalLM": 1}])
def test_architectures_that_are_not_a_list_of_names(directory, names):
    change_config(directory, architectures=names)
    refused(f"{directory}/config.json: 'architectures' is not a list of names", directory)


@pytest.mark.parametrize("name", ["LlamaConfig", "pipeline", "AutoModelForCausalLM", "PreTrainedModel"])
def test_architectures_that_are_not_models(directory, name):
    change_config(directory, architectures=[name])
    refused(f"{directory}: config.json names ['{name}'], which is not a model of transformers", directory)


def test_a_model_for_another_config(directory):
    change_config(directory, architectures=["BertModel"])
    refused(f"{directory}: config.json: 'LlamaConfig' object has no attribute 'type_vocab_size'", directory)


def test_options_of_the_hub_that_are_not_supported(directory):
    says = "cache_dir is not supported; HF_HUB_CACHE in the environment names another cache"
    refused(says, directory, nibble.UsageError, cache_dir=directory)


def test_sizes_that_make_no_sense(directory):
    change_config(directory, vocab_size=2**62)
    says = f"{directory}: config.json: Storage size calculation overflowed with sizes=[{2**62}, 64]"
    refused(says, directory)
    change_config(directory, vocab_size=2**50)  # as many are possible, but no machine has memory for them
    refused(f"{directory}: tensor 'lm_head.weight': is [256, 64], the model's weight is [{2**50}, 64]", directory)


def test_a_compute_dtype_that_torch_lacks(directory):
    stored = json.loads((directory / "config.json").read_text())["quantization_config"]
    change_config(directory, quantization_config=stored | {"bnb_4bit_compute_dtype": "blah"})
    refused(
        f"{directory}: config.json: compute_dtype 'blah' in quantization_config is no type of torch", directory
    )


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


@pytest.mark.parametrize("device", ["xpu", "no_device"])
def test_devices_that_torch_cannot_use(nf4, device):
    try:
        torch.empty(0, device=device)
    except Exception:
        says = f"device_map has {device}, which is not a device that torch can use"
        refused(says, nf4, nibble.UsageError, device_map=device)
        refused(says, nf4, nibble.UsageError, device_map={"model": "cpu", "lm_head": device})


def test_any_device_is_the_cpu_where_there_is_no_other(nf4, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    pytest.importorskip("accelerate")
    assert nibble.load(nf4, device_map="auto").device == torch.device("cpu")


# --- from_pretrained() ------------------------------------------------------------------------------------------------


def mixed(folder, dropped):
    """A directory that only nibble reads, without a weight."""
    save(folder / "plain", "Llama")
    options = ("--embeddings", "int8", "--allow-nibble-only")
    directory = convert(folder / "plain", folder / "mixed", "--to", "nf4", *options)

    def drop(state):
        for part in [part for part in state if part.startswith(dropped)]:
            del state[part]

    change_tensors(directory, drop)
    return directory


@pytest.mark.parametrize("kind", ["AutoModel", "AutoModelForCausalLM", "AutoModelForSequenceClassification"])
def test_transformers_gives_no_random_values_to_what_is_quantized_in_other_layers(tmp_path, kind):
    name = "model.layers.1.mlp.up_proj.weight"
    directory = mixed(tmp_path, name)
    with pytest.raises(nibble.BadInputError) as caught:
        getattr(transformers, kind).from_pretrained(directory)
    says = rf"{re.escape(str(directory))}: tensor '{re.escape(name)}': is missing, Llama(Model|For\w+) needs it"
    assert re.fullmatch(says, str(caught.value))


def test_transformers_makes_the_head_that_a_base_lacks(tmp_path):
    directory = mixed(tmp_path, "lm_head.weight")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(directory, num_labels=3)
    assert model.score.weight.shape == (3, 64)
    assert sum(isinstance(module, Linear4bit) for module in model.modules()) == 2 * 7


def test_layers_that_are_not_quantized_may_differ_from_those_that_are(tmp_path):
    save(tmp_path / "plain", "GptOss")
    options = ("--to", "nf4", "--experts", "nf4", "--skip", r".*layers\.1\..*", "--allow-nibble-only")
    directory = convert(tmp_path / "plain", tmp_path / "nf4", *options)
    _, said = transformers.AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True)
    assert not any(said[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
