"""What the user chooses against the defaults: the directories still load, because llm_int8_skip_modules says all that
differs. A list replaces transformers' defaults, so it has to be complete."""

import json

import architectures
import pytest
import stored
import torch
from loading import BITSANDBYTES, first_output, load, quantization_config, quantize_on_the_fly, quantized_modules
from models import save_llama, tokens
from safetensors.torch import load_file, save_file

INPUTS = {"input_ids": tokens()}
LINEAR = 2 * 7
DOWN = {"model.layers.0.mlp.down_proj", "model.layers.1.mlp.down_proj"}


@pytest.fixture(scope="module", params=[False, True], ids=["untied", "tied"])
def llama(request, tmp_path_factory):
    return save_llama(tmp_path_factory.mktemp("llama"), tied=request.param), request.param


@pytest.fixture(scope="module")
def untied(tmp_path_factory):
    return save_llama(tmp_path_factory.mktemp("untied"))


def equals_reference(source, directory):
    """Loads both ways; the plain model is quantized with the directory's own configuration."""
    ours = load(directory)
    theirs = quantize_on_the_fly(source, quantization_config(directory))
    assert quantized_modules(ours) == quantized_modules(theirs)
    assert torch.equal(first_output(ours, INPUTS), first_output(theirs, INPUTS))
    return quantized_modules(ours)


@pytest.mark.parametrize("to", BITSANDBYTES)
def test_skip(nibble, llama, to):
    source, _ = llama
    directory = nibble.convert(source, to, *nibble.plain_absmax(to), "--skip", r".*\.down_proj\.weight")
    found = equals_reference(source, directory)
    assert len(found) == LINEAR - 2 and not DOWN & found.keys()
    skipped = quantization_config(directory)["llm_int8_skip_modules"]
    assert "lm_head" in skipped and DOWN <= set(skipped)


def test_skip_one_layer_of_many(nibble, tmp_path):
    """`layers.1` must not stand for `layers.10`, and no entry for a module whose name ends like it."""
    architectures.save("LlamaForCausalLM", tmp_path, num_hidden_layers=12, vocab_size=512)
    directory = nibble.convert(tmp_path, "int8", "--skip", r"model\.layers\.1\.self_attn\.[qk]_proj\.weight")
    assert len(equals_reference(tmp_path, directory)) == 12 * 7 - 2


@pytest.mark.parametrize("to", ["nf4", "fp4"])
def test_another_four_bit_codec_for_some(nibble, llama, to):
    """What is stored decides between NF4 and FP4, so both can be in one directory."""
    other = {"nf4": "fp4", "fp4": "nf4"}[to]
    directory = nibble.convert(llama[0], to, "--no-double-quant", "--tensor", rf".*\.down_proj\.weight={other}")
    model = load(directory)
    types = {name: model.get_submodule(name).weight.quant_state.quant_type for name in quantized_modules(model)}
    assert {name for name, kind in types.items() if kind == other} == DOWN
    assert torch.isfinite(first_output(model, INPUTS)).all()
    assert quantization_config(directory)["bnb_4bit_quant_type"] in (to, other)


def test_every_tensor_may_have_options_of_its_own(nibble, untied):
    rule = r".*down_proj\.weight=nf4:block-size=32,double-quant=no"
    model = load(nibble.convert(untied, "nf4:block-size=128", "--tensor", rule))
    states = {name: model.get_submodule(name).weight.quant_state for name in quantized_modules(model)}
    assert {(state.blocksize, state.nested) for name, state in states.items() if name in DOWN} == {(32, False)}
    assert {(state.blocksize, state.nested) for name, state in states.items() if name not in DOWN} == {(128, True)}
    assert torch.isfinite(first_output(model, INPUTS)).all()


def test_the_last_rule_wins(nibble, untied):
    directory = nibble.convert(untied, "nf4", "--tensor", r".*_proj\.weight=fp4", "--tensor", r".*\.o_proj\.weight=nf4")
    names = [name for name in stored.read(directory) if ".quant_state." in name]
    assert sum("__nf4" in name for name in names) == 2 == sum("o_proj" in n and "__nf4" in n for n in names)


@pytest.mark.parametrize("to", BITSANDBYTES)
def test_lm_head(nibble, untied, to):
    directory = nibble.convert(untied, to, "--lm-head", to, *nibble.plain_absmax(to))
    found = equals_reference(untied, directory)
    assert len(found) == LINEAR + 1 and "lm_head" in found
    skipped = quantization_config(directory)["llm_int8_skip_modules"]
    assert skipped == []  # nothing is left to skip, and null would mean lm_head


def test_no_default_skips(nibble, llama):
    source, tied = llama
    directory = nibble.convert(source, "nf4", "--no-default-skips", "--no-double-quant")
    found = equals_reference(source, directory)
    assert ("lm_head" in found) == (not tied)
    assert len(found) == LINEAR + (not tied)


@pytest.mark.parametrize("name", ["T5ForConditionalGeneration", "GPT2LMHeadModel", "BertForMaskedLM",
                                  "WhisperForConditionalGeneration", "GPTNeoXForCausalLM"])  # fmt: skip
def test_skip_in_other_architectures(nibble, tmp_path, name):
    architectures.save(name, tmp_path)
    cls = architectures.model_class(name)
    everything = quantized_modules(load(nibble.convert(tmp_path, "int8"), cls))
    skipped = sorted(everything)[0]
    parts = stored.read(nibble.convert(tmp_path, "int8"))
    stored_name = next(n for n in parts if n.endswith("." + skipped.split(".", 1)[1] + ".SCB") or n == skipped + ".SCB")
    pattern = stored_name.removesuffix("SCB").replace(".", r"\.") + "weight"
    directory = nibble.convert(tmp_path, "int8", "--skip", pattern)
    ours = load(directory, cls)
    theirs = quantize_on_the_fly(tmp_path, quantization_config(directory), cls)
    assert quantized_modules(ours) == quantized_modules(theirs)
    assert quantized_modules(ours).keys() == everything.keys() - {skipped}
    inputs = architectures.inputs(name)
    assert torch.equal(first_output(ours, inputs), first_output(theirs, inputs))


@pytest.mark.parametrize(
    ("option", "why"),
    [(["--skip", "nothing"], "'nothing' matches no tensor"),
     (["--tensor", "nothing=nf4"], "'nothing' matches no tensor"),
     (["--tensor", ".*norm.*=nf4"], "'.*norm.*' matches only tensors that nf4 cannot store")],
)  # fmt: skip
def test_a_rule_that_matches_nothing(nibble, untied, option, why):
    assert why in nibble.fails(2, untied, "nf4", *option)


@pytest.mark.parametrize("options", [["--tensor", r".*\.down_proj\.weight=int8"], ["--embeddings", "nf4"],
                                     ["--lm-head", "int8"]])  # fmt: skip
def test_what_bitsandbytes_cannot_say(nibble, untied, options):
    message = nibble.fails(2, untied, "nf4", *options)
    assert "--allow-nibble-only" in message
    directory = nibble.convert(untied, "nf4", *options, "--allow-nibble-only")
    assert quantization_config(directory)["quant_method"] == "nibble"


def test_already_quantized(nibble, untied):
    message = nibble.fails(3, nibble.convert(untied, "nf4"), "int8")
    assert "quantized already by bitsandbytes" in message


# ---- values that no codec can hold ---------------------------------------------------------------------------

BROKEN = "model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module", params=["nan", "inf", "overflow"])
def broken(request, tmp_path_factory):
    directory = save_llama(tmp_path_factory.mktemp("broken"))
    tensors = load_file(directory / "model.safetensors")
    tensors[BROKEN + ".weight"][5, 7] = {"nan": torch.nan, "inf": -torch.inf, "overflow": 7e4}[request.param]
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory, request.param


@pytest.mark.parametrize("to", BITSANDBYTES)
def test_a_nonfinite_tensor_is_kept(nibble, broken, to):
    source, kind = broken
    if (to, kind) == ("nf4", "overflow"):
        return  # 70000 is nothing special for NF4
    directory = nibble.convert(source, to, *nibble.plain_absmax(to))
    count = {"nan": "1 NaN", "inf": "1 infinite", "overflow": "1 beyond fp16"}[kind]
    assert f"tensor '{BROKEN}.weight' is kept as F32: {count}" in nibble.warnings
    skipped = quantization_config(directory)["llm_int8_skip_modules"]
    assert BROKEN in skipped and "lm_head" in skipped
    model = load(directory)
    assert quantized_modules(model).keys() == quantized_modules(
        quantize_on_the_fly(source, quantization_config(directory))).keys()  # fmt: skip
    assert len(quantized_modules(model)) == LINEAR - 1
    assert stored.read(directory)[BROKEN + ".weight"] == stored.read(source)[BROKEN + ".weight"]
    manifest = {t["name"]: t for t in json.loads((directory / "nibble.json").read_text())["tensors"]}
    assert manifest[BROKEN + ".weight"]["codec"] == "keep"


def test_nonfinite_tensors_keep_the_shards(nibble, broken):
    source, kind = broken
    single = nibble.convert(source, "int8")
    directory = nibble.convert(source, "int8", "--max-shard-size", "100KB")
    assert len(list(directory.glob("*.safetensors"))) > 3
    assert stored.read(directory) == stored.read(single)
    load(directory)


def test_nonfinite_error(nibble, broken):
    source, kind = broken
    message = nibble.fails(3, source, "int8", "--nonfinite", "error")
    assert message.startswith(f"{source}/model.safetensors: tensor '{BROKEN}.weight': ") and "647" in message  # 5 * 128 + 7


def test_nonfinite_quantize(nibble, broken):
    source, kind = broken
    directory = nibble.convert(source, "int8", "--nonfinite", "quantize")
    assert quantization_config(directory)["llm_int8_skip_modules"] is None
    model = load(directory)
    assert len(quantized_modules(model)) == LINEAR
    restored = torch.from_numpy(stored.decode(stored.read(directory), BROKEN + ".weight"))
    assert torch.isfinite(restored).all()
    assert torch.isfinite(first_output(model, INPUTS)).all()
