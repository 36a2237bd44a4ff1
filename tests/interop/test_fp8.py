"""FP8 in transformers, through compressed-tensors: what a directory decodes to is what the model multiplies by."""

import json

import numpy as np
import pytest
import stored
import torch
import transformers
from loading import first_output, load, quantization_config
from models import DTYPES, save_llama, tokens
from safetensors.torch import load_file, save_file

STRATEGIES = {"row": "channel", "tensor": "tensor", "block": "block"}  # of nibble -> of compressed-tensors
FORMATS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
INPUTS = {"input_ids": tokens()}


def decoded(tensors, name):
    """The fp32 weights behind a name of a file that compressed-tensors' keys describe."""
    codes, scale = tensors[name].float(), tensors[name + "_scale"].float()
    if scale.dim() == 2 and scale.shape[1] > 1 or scale.shape[0] not in (1, codes.shape[0]):
        scale = scale.repeat_interleave(128, 0).repeat_interleave(128, 1)[: codes.shape[0], : codes.shape[1]]
    return codes * scale


def quantized(tensors):
    return [name.removesuffix("_scale") for name in tensors if name.endswith("_scale")]


@pytest.mark.parametrize("scales", STRATEGIES)
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_outputs_are_those_of_the_decoded_weights(nibble, tmp_path, dtype, tied, scales):
    source = save_llama(tmp_path / "model", dtype, tied)
    directory = nibble.convert(source, f"fp8:scales={scales}")
    config = quantization_config(directory)
    assert config["quant_method"] == "compressed-tensors" and config["format"] == "float-quantized"
    assert config["config_groups"]["group_0"]["weights"]["strategy"] == STRATEGIES[scales]
    tensors = load_file(directory / "model.safetensors")
    assert len(quantized(tensors)) == 14 and "lm_head.weight_scale" not in tensors

    model = load(directory)
    ours = first_output(model, INPUTS)  # the first forward pass decodes the weights
    plain = transformers.AutoModelForCausalLM.from_pretrained(source).eval()
    with torch.no_grad():
        for name in quantized(tensors):
            plain.get_parameter(name).copy_(decoded(tensors, name))
    assert torch.equal(ours, first_output(plain, INPUTS))
    assert not torch.equal(ours, first_output(transformers.AutoModelForCausalLM.from_pretrained(source), INPUTS))


@pytest.mark.parametrize("scales", STRATEGIES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_scales_and_codes_are_those_of_compressed_tensors(nibble, tmp_path, dtype, scales):
    from compressed_tensors.quantization import QuantizationArgs, quantize
    from compressed_tensors.quantization.utils import calculate_qparams

    weight = torch.randn((130, 260), generator=torch.Generator().manual_seed(3)).mul(0.02).to(DTYPES[dtype])
    weight[5] = 0
    save_file({"layer.weight": weight}, tmp_path / "in.safetensors")
    ours = load_file(nibble.convert(tmp_path / "in.safetensors", f"fp8:scales={scales}"))

    block = {"block_structure": [128, 128]} if scales == "block" else {}
    args = QuantizationArgs(num_bits=8, type="float", strategy=STRATEGIES[scales], **block)
    if scales == "tensor":
        low, high = weight.aminmax()
    elif scales == "row":
        low, high = weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
    else:
        blocks = torch.nn.functional.pad(weight, (0, 384 - 260, 0, 256 - 130)).reshape(2, 128, 3, 128)
        low, high = blocks.amin((1, 3)), blocks.amax((1, 3))
    scale, _ = calculate_qparams(low, high, args)
    assert torch.equal(ours["layer.weight_scale"], scale) and ours["layer.weight_scale"].dtype == DTYPES[dtype]
    # In fp32, as its code for GPUs divides; on a CPU it would round the quotients of 16-bit weights to 16 bits first.
    codes = quantize(weight.float(), scale.float(), None, args, dtype=torch.float8_e4m3fn)
    assert torch.equal(ours["layer.weight"].view(torch.uint8), codes.view(torch.uint8))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_codes_are_those_of_torchs_cast(nibble, tmp_path, dtype, format):
    """Of every 16-bit number, and of random fp32: a row's largest magnitude is the largest code, so its scale is 1."""
    largest = torch.finfo(FORMATS[format]).max
    if dtype == "fp32":
        bits = np.random.default_rng(0).integers(0, 1 << 32, 1 << 20, dtype=np.uint32).view(np.int32)
    else:
        bits = np.arange(1 << 16, dtype=np.uint16).view(np.int16)
    weight = torch.from_numpy(bits).view(DTYPES[dtype])
    weight = weight[weight.abs() <= largest]
    weight = torch.cat([weight, torch.tensor([largest], dtype=DTYPES[dtype])]).reshape(1, -1)
    save_file({"layer.weight": weight}, tmp_path / "in.safetensors")
    out = nibble.convert(tmp_path / "in.safetensors", f"fp8:format={format}", "--allow-nibble-only")
    ours = load_file(out)
    assert ours["layer.weight_scale"].item() == 1
    assert torch.equal(ours["layer.weight"].view(torch.uint8), weight.to(FORMATS[format]).view(torch.uint8))
    values = ours["layer.weight"].float()
    assert torch.equal(values, weight.to(FORMATS[format]).float())


def test_what_transformers_cannot_load_is_refused(nibble, tmp_path):
    source = save_llama(tmp_path / "model", "bf16")
    assert "E5M2" in nibble.fails(2, source, "fp8:format=e5m2")
    assert "is not in a format of" in nibble.fails(2, source, "fp8", "--tensor", ".*down_proj.*=nf4")
    directory = nibble.convert(source, "fp8:format=e5m2", "--allow-nibble-only")
    assert quantization_config(directory)["quant_method"] == "nibble"


def test_measure_and_inspect_know_it(nibble, tmp_path):
    source = save_llama(tmp_path / "model", "bf16")
    directory = nibble.convert(source, "fp8")
    done = nibble.run("measure", source, directory, "--json")
    assert done.returncode == 0, done.stderr
    assert "fp8" in nibble.run("inspect", directory).stdout
    tensors = load_file(directory / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    error = decoded(tensors, name).double() - stored_weight(source, name)
    expected = error.square().mean().sqrt().item()
    report = json.loads(done.stdout)
    [index] = [i for i, tensor in enumerate(report["reference"]["tensors"]) if tensor["name"] == name]
    found = report["tests"][0]["tensors"][index]
    assert found["codec"] == "fp8" and abs(found["rmse"] - expected) < 1e-6 * expected


def stored_weight(directory, name):
    return torch.from_numpy(stored.decode(stored.read(directory), name)).double()
