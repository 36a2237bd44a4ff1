"""Mixtures of experts. transformers holds the experts of a layer as one 3-D parameter, which bitsandbytes cannot."""

import json
import re

import architectures
import bitsandbytes
import bitsandbytes.functional as F
import pytest
import stored
import torch
from loading import BITSANDBYTES, load, quantized_modules
from safetensors.torch import load_file, save_file

NAME = "Qwen3MoeForCausalLM"
EXPERT = re.compile(r"model\.layers\.\d+\.mlp\.experts\.(\d+)\.(gate|up|down)_proj\.weight")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    directory = tmp_path_factory.mktemp("experts")
    architectures.save(NAME, directory)
    assert sum(bool(EXPERT.fullmatch(name)) for name in stored.read(directory)) == 2 * 4 * 3
    return directory


@pytest.mark.parametrize("to", [*BITSANDBYTES, "fp8"])
def test_experts_stay_and_their_share_is_said(nibble, source, to):
    directory = nibble.convert(source, to)
    parts, before = stored.read(directory), stored.read(source)
    experts = [name for name in before if EXPERT.fullmatch(name)]
    assert all(parts[name] == before[name] for name in experts)
    share = 100 * sum(len(before[name].data) for name in experts) / sum(len(part.data) for part in before.values())
    said = [w for w in nibble.warnings if "experts" in w]
    method = json.loads((directory / "config.json").read_text())["quantization_config"]["quant_method"]
    assert said == [f"{share:.1f} % of the weights' bytes are experts, which {method} cannot hold: they stay "
                    "as they are; --experts CODEC --allow-nibble-only quantizes them"]  # fmt: skip
    model = load(directory, architectures.model_class(NAME))
    layers = [n for n in parts if n.endswith("weight_scale")] if to == "fp8" else quantized_modules(model)
    assert len(layers) == 2 * 4


def test_quantized_experts_need_consent(nibble, source):
    message = nibble.fails(2, source, "nf4", "--experts", "nf4")
    assert "transformers could not load the result; pass --allow-nibble-only to write it anyway" in message


@pytest.mark.parametrize("to", [*BITSANDBYTES, "fp8"])
def test_quantized_experts(nibble, source, to):
    directory = nibble.convert(source, to, "--experts", to, "--allow-nibble-only", *nibble.plain_absmax(to))
    assert any("nibble's own loader" in warning for warning in nibble.warnings)
    config = json.loads((directory / "config.json").read_text())
    assert config["quantization_config"]["quant_method"] == "nibble"
    parts = stored.read(directory)
    weights = {name: w for name, w in load_file(source / "model.safetensors").items() if EXPERT.fullmatch(name)}
    check(parts, weights, to)


def test_fused_experts_become_matrices(nibble, tmp_path):
    """A file whose experts are 3-D: one matrix each, named as transformers names experts."""
    architectures.save(NAME, tmp_path)
    fused, plain = {}, {}
    for name, weight in load_file(tmp_path / "model.safetensors").items():
        match = EXPERT.fullmatch(name)
        if match is None:
            plain[name] = weight
        else:
            whole = re.sub(r"experts\.\d+\.(\w+)\.weight", r"experts.\1", name)
            fused.setdefault(whole, {})[int(match[1])] = weight
    stacked = {name: torch.stack([matrices[e] for e in sorted(matrices)]) for name, matrices in fused.items()}
    gate_up = {name.replace("gate_proj", "gate_up_proj"):
               torch.cat([stacked[name], stacked[name.replace("gate_proj", "up_proj")]], 1)
               for name in stacked if name.endswith("gate_proj")}  # fmt: skip
    down = {name: weight for name, weight in stacked.items() if name.endswith("down_proj")}
    save_file(plain | gate_up | down, tmp_path / "model.safetensors", metadata={"format": "pt"})
    directory = nibble.convert(tmp_path, "nf4", "--experts", "nf4", "--allow-nibble-only", "--no-double-quant")
    parts = stored.read(directory)
    expected = {f"{name.rpartition('.')[0]}.{e}.{name.rpartition('.')[2]}.weight": weight[e]
                for name, weight in (gate_up | down).items() for e in range(4)}  # fmt: skip
    check(parts, expected, "nf4")


def check(parts, weights, to):
    """Every matrix is stored as bitsandbytes quantizes it, or in FP8 with a scale per row."""
    for name, weight in weights.items():
        if to == "fp8":
            scale = weight.abs().amax(1, keepdim=True) / 448
            assert parts[name].data == (weight / scale).to(torch.float8_e4m3fn).view(torch.uint8).numpy().tobytes()
            assert parts[name + "_scale"].data == scale.numpy().tobytes()
        elif to == "int8":
            theirs = bitsandbytes.nn.Int8Params(weight.clone(), requires_grad=False, has_fp16_weights=False).to("cpu")
            assert parts[name].data == theirs.data.numpy().tobytes()
            assert parts[name.removesuffix("weight") + "SCB"].data == theirs.SCB.numpy().tobytes()
        else:
            packed, state = F.quantize_4bit(weight.contiguous(), quant_type="nf4")
            assert parts[name].data == packed.numpy().tobytes()
            for key, value in state.as_dict(packed=True).items():
                assert parts[f"{name}.{key}"].data == value.numpy().tobytes()
