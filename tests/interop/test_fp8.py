"""FP8 in transformers, through compressed-tensors: what a directory decodes to is what the model multiplies by."""

import json

import architectures
import numpy as np
import pytest
import stored
import torch
import transformers
from loading import first_output, load, quantization_config
from models import DTYPES, edit_config, save_llama, tokens
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


DOWN = {"model.layers.0.mlp.down_proj", "model.layers.1.mlp.down_proj"}


@pytest.mark.parametrize("options, plain", [([], {"lm_head"}), (["--skip", r".*\.down_proj\.weight"], {"lm_head"} | DOWN),
                                            (["--lm-head", "fp8"], set())])  # fmt: skip
def test_what_stays_plain_is_ignored(nibble, tmp_path, options, plain):
    source = save_llama(tmp_path / "model", "bf16")
    directory = nibble.convert(source, "fp8", *options)
    assert set(quantization_config(directory)["ignore"]) == plain
    tensors = load_file(directory / "model.safetensors")
    assert len(quantized(tensors)) == 15 - len(plain)
    assert not plain & {name.removesuffix(".weight") for name in quantized(tensors)}
    assert torch.isfinite(first_output(load(directory), INPUTS)).all()


@pytest.mark.parametrize("value, said", [(torch.nan, "1 NaN"), (-torch.inf, "1 infinite")])
def test_a_nonfinite_tensor_is_kept(nibble, tmp_path, value, said):
    source, module = save_llama(tmp_path / "model"), "model.layers.0.self_attn.q_proj"
    tensors = load_file(source / "model.safetensors")
    tensors[module + ".weight"][5, 7] = value
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    directory = nibble.convert(source, "fp8")
    assert f"tensor '{module}.weight' is kept as F32: {said}" in nibble.warnings
    assert set(quantization_config(directory)["ignore"]) == {"lm_head", module}
    assert stored.read(directory)[module + ".weight"] == stored.read(source)[module + ".weight"]
    load(directory)


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


REFUSED = {"GPT2LMHeadModel": "is a Conv1D", "Dinov2Model": "splits tensors of Dinov2Model when it loads them"}


@pytest.mark.parametrize("name", architectures.CASES)
def test_every_architecture_loads(nibble, tmp_path, name):
    """compressed-tensors replaces linear layers by a rule of its own: what stays plain has to be named."""
    cls = architectures.model_class(name)
    architectures.save(name, tmp_path / "model")
    if name in REFUSED:
        assert REFUSED[name] in nibble.fails(2, tmp_path / "model", "fp8")
        return
    directory = nibble.convert(tmp_path / "model", "fp8")
    plain = nibble.convert(directory, "fp32")
    a, b = (first_output(load(path, cls), architectures.inputs(name)) for path in (directory, plain))
    assert torch.isfinite(a).all() and a.abs().max() > 0
    torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)  # where weights lie decides in which order they are added


# ---- as input ----


def codes_and_scales(weight):
    """FP8 as DeepSeek-V3's files have it: codes, and F32 scales of blocks of 128 x 128 weights."""
    rows, columns = (-(-n // 128) for n in weight.shape)
    blocks = torch.zeros(rows * 128, columns * 128)
    blocks[: weight.shape[0], : weight.shape[1]] = weight.float()
    blocks = blocks.reshape(rows, 128, columns, 128)
    scale = blocks.abs().amax((1, 3)).div(448).clamp_min(1e-12)
    codes = (blocks / scale[:, None, :, None]).to(torch.float8_e4m3fn).reshape(rows * 128, columns * 128)
    return codes[: weight.shape[0], : weight.shape[1]].contiguous(), scale


def save_deepseek(directory):
    """A tiny DeepSeek-V3 with FP8 layers; returns the bf16 weights that its codes stand for, by name."""
    architectures.save("DeepseekV3ForCausalLM", directory, hidden_size=192)
    edit_config(directory, dtype="bfloat16", quantization_config={
        "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]})  # fmt: skip
    tensors, stored_as, weights = load_file(directory / "model.safetensors"), {}, {}
    for name, tensor in tensors.items():
        weights[name] = stored_as[name] = tensor.to(torch.bfloat16)
        if tensor.ndim != 2 or "embed" in name or "lm_head" in name or name.endswith("gate.weight"):
            continue
        codes, scale = codes_and_scales(tensor)
        stored_as[name], stored_as[name + "_scale_inv"] = codes, scale
        full = scale.repeat_interleave(128, 0).repeat_interleave(128, 1)[: codes.shape[0], : codes.shape[1]]
        weights[name] = (codes.float() * full).to(torch.bfloat16)
    assert sum("_scale_inv" in name for name in stored_as) > 10
    save_file(stored_as, directory / "model.safetensors", metadata={"format": "pt"})
    return weights


def test_deepseeks_blocks_become_the_weights_they_stand_for(nibble, tmp_path):
    weights = save_deepseek(tmp_path / "model")
    plain = nibble.convert(tmp_path / "model", "bf16")
    tensors = load_file(plain / "model.safetensors")
    assert tensors.keys() == weights.keys()
    for name, weight in weights.items():
        assert torch.equal(tensors[name], weight), name
    assert "quantization_config" not in json.loads((plain / "config.json").read_text())
    first_output(transformers.AutoModelForCausalLM.from_pretrained(plain).eval(), {"input_ids": tokens(128)})
    # The same bytes as by way of the plain model.
    for to in ["nf4", "int8", "fp8:scales=block"]:
        direct, detour = nibble.convert(tmp_path / "model", to), nibble.convert(plain, to)
        assert (direct / "model.safetensors").read_bytes() == (detour / "model.safetensors").read_bytes()
        assert quantization_config(direct) == quantization_config(detour)
    load(nibble.convert(tmp_path / "model", "nf4"))


@pytest.mark.parametrize("scales", STRATEGIES)
def test_compressed_tensors_become_the_weights_they_stand_for(nibble, tmp_path, scales):
    source = save_llama(tmp_path / "model", "bf16")
    fp8 = nibble.convert(source, f"fp8:scales={scales}")
    stored_as = load_file(fp8 / "model.safetensors")
    stored_as["model.layers.0.mlp.up_proj.input_scale"] = torch.ones(1)  # as other tools write it
    save_file(stored_as, fp8 / "model.safetensors", metadata={"format": "pt"})
    tensors = load_file(nibble.convert(fp8, "bf16") / "model.safetensors")
    assert tensors.keys() == load_file(source / "model.safetensors").keys()
    for name in quantized(stored_as):
        if not name.endswith("input"):
            assert torch.equal(tensors[name], decoded(stored_as, name).to(torch.bfloat16)), name
    load(nibble.convert(fp8, "nf4"))


def test_other_forms_are_refused(nibble, tmp_path):
    """Codes that nibble does not decode would be copied as numbers that nobody knows the meaning of."""
    source = nibble.convert(save_llama(tmp_path / "model", "bf16"), "fp8")
    tensors = load_file(source / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    save_file(tensors | {name: tensors[name].view(torch.int8)}, source / "model.safetensors", metadata={"format": "pt"})
    assert f"'{name}' is I8 344 x 128: quantized already by compressed-tensors" in nibble.fails(3, source, "nf4")
    edit_config(source, quantization_config={"quant_method": "gptq"})
    assert "'gptq' is not supported" in nibble.fails(3, source, "nf4")
