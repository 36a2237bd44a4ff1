"""Directories of a tiny Llama in transformers and peft.

The reference is the same model quantized by transformers while it loads it. Its bytes are ours without double
quantization and in int8, so outputs are equal. With double quantization the absmax values may differ by one step of
the 8-bit map (test_bytes.py); there the outputs must be those of a plain model that holds the weights as numpy
decodes them from the file, and close to the reference.
"""

import json
import shutil

import pytest
import stored
import torch
import transformers
from architectures import CASES, EXPERTS
from loading import BITSANDBYTES, first_output, load, quantization_config, quantize_on_the_fly, quantized_modules, raw
from models import DTYPES, edit_config, save_llama, tokens
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import BitsAndBytesConfig

TARGETS = {  # what is converted to -> what transformers is told
    "nf4": dict(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True),
    "nf4 --no-double-quant": dict(load_in_4bit=True, bnb_4bit_quant_type="nf4"),
    "fp4 --no-double-quant": dict(load_in_4bit=True, bnb_4bit_quant_type="fp4"),
    "int8": dict(load_in_8bit=True),
    "fp16": None,
    "bf16": None,
}
LINEAR = {f"model.layers.{i}.{module}" for i in range(2)
          for module in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                         "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")}  # fmt: skip
INPUTS = {"input_ids": tokens()}


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    made = {}

    def make(dtype="fp32", tied=False, sharded=False):
        key = dtype, tied, sharded
        if key not in made:
            directory = tmp_path_factory.mktemp("llama")
            made[key] = save_llama(directory, dtype, tied, **({"max_shard_size": "300KB"} if sharded else {}))
            assert (directory / "model.safetensors.index.json").exists() == sharded
        return made[key]

    yield make
    for directory in made.values():
        shutil.rmtree(directory)


def reference_config(target, dtype):
    settings = TARGETS[target]
    if "load_in_4bit" in settings:
        return BitsAndBytesConfig(**settings, bnb_4bit_compute_dtype=DTYPES[dtype])
    return BitsAndBytesConfig(**settings)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("sharded", [False, True], ids=["single", "sharded"])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_outputs(nibble, llama, dtype, tied, sharded, target):
    source = llama(dtype, tied, sharded)
    directory = nibble.convert(source, *target.split())
    # A fourth of a model this tiny is embeddings, and some have the type already.
    assert not [w for w in nibble.warnings if "embeddings" not in w and "already" not in w]
    model = load(directory)
    config = json.loads((directory / "config.json").read_text())
    declared = target if TARGETS[target] is None else dtype
    assert config["dtype"] == config["torch_dtype"] == str(DTYPES[declared]).removeprefix("torch.")
    assert model.dtype == DTYPES[declared]

    if TARGETS[target] is None:
        assert "quantization_config" not in config and not quantized_modules(model)
        plain = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=DTYPES[target])
        assert model.state_dict().keys() == plain.state_dict().keys()
        for name, tensor in plain.state_dict().items():
            assert torch.equal(model.state_dict()[name], tensor), name
        return

    assert set(quantized_modules(model)) == LINEAR
    assert set(quantized_modules(model).values()) == {"Linear8bitLt" if target == "int8" else "Linear4bit"}
    ours = first_output(model, INPUTS)
    reference = quantize_on_the_fly(source, reference_config(target, dtype), dtype=DTYPES[dtype])
    theirs = first_output(reference, INPUTS)
    assert torch.isfinite(ours).all()
    if target != "nf4":
        assert torch.equal(ours, theirs)
        return
    # One step of the 8-bit map is 1.6 % of a block's spread of absmax, and one absmax in a thousand takes one. It may
    # tip a few roundings to the model's type besides; which ones depends on the processor's instructions for bf16.
    limit = 0.01 + 2 * torch.finfo(DTYPES[dtype]).eps
    assert (ours - theirs).abs().max() <= limit * theirs.abs().max()
    if dtype == "fp32":
        assert torch.equal(ours, first_output(decoded(source, directory), INPUTS))


def decoded(source, directory):
    """The plain model with the weights that the directory stands for."""
    parts = stored.read(directory)
    model = transformers.AutoModelForCausalLM.from_pretrained(source).eval()
    with torch.no_grad():
        for name in LINEAR:
            model.get_submodule(name).weight.copy_(torch.from_numpy(stored.decode(parts, name + ".weight")))
    return model


@pytest.mark.parametrize("target", [t for t in TARGETS if TARGETS[t]])
@pytest.mark.parametrize("dtype", DTYPES)
def test_quantization_config_is_that_of_transformers(nibble, llama, tmp_path, dtype, target):
    directory = nibble.convert(llama(dtype), *target.split())
    reference = quantize_on_the_fly(llama(dtype), reference_config(target, dtype), dtype=DTYPES[dtype])
    reference.save_pretrained(tmp_path)
    theirs, ours = quantization_config(tmp_path), quantization_config(directory)
    assert ours == theirs
    assert ours["llm_int8_skip_modules"] is None
    assert {key: type(value) for key, value in ours.items()} == {key: type(value) for key, value in theirs.items()}

    # and its files hold the same tensors under the same names
    theirs, ours = stored.read(tmp_path), stored.read(directory)
    assert ours.keys() == theirs.keys()
    if target != "nf4":
        assert ours == theirs


def test_compute_dtype(nibble, llama):
    assert quantization_config(nibble.convert(llama(), "nf4"))["bnb_4bit_compute_dtype"] == "float32"
    assert quantization_config(nibble.convert(llama("bf16"), "nf4"))["bnb_4bit_compute_dtype"] == "bfloat16"
    directory = nibble.convert(llama("bf16"), "nf4", "--compute-dtype", "float16")
    assert quantization_config(directory)["bnb_4bit_compute_dtype"] == "float16"
    model = load(directory)
    assert model.get_submodule(min(LINEAR)).compute_dtype == torch.float16


# transformers keeps some weights of a 16-bit model in fp32, but not those of a quantized one that it finds in 16 bits.
@pytest.mark.parametrize("to", BITSANDBYTES)
@pytest.mark.parametrize("case", [
    ("T5ForConditionalGeneration", {}, torch.float16),
    ("Ernie4_5_MoeForCausalLM", EXPERTS | dict(moe_num_experts=4, moe_k=2, moe_num_shared_experts=1), torch.bfloat16),
], ids=lambda case: case[0])  # fmt: skip
def test_types_are_those_of_a_model_quantized_while_it_is_loaded(nibble, tmp_path, case, to):
    name, options, dtype = case
    cls = getattr(transformers, name)
    model = cls(cls.config_class(**(options or CASES[name].config))).to(dtype)
    model.save_pretrained(tmp_path / "model")
    directory = nibble.convert(tmp_path / "model", to, *(["--no-double-quant"] if to == "nf4" else []))
    ours = load(directory, cls)
    theirs = quantize_on_the_fly(tmp_path / "model", quantization_config(directory), cls, dtype="auto")
    expected = theirs.state_dict()
    found = ours.state_dict()
    assert found.keys() == expected.keys()
    assert {key: value.dtype for key, value in found.items()} == {key: value.dtype for key, value in expected.items()}
    assert torch.float32 in {value.dtype for key, value in found.items() if key.endswith((".wo.weight", ".gate.weight"))}
    assert not [key for key, value in found.items() if not torch.equal(raw(value), raw(expected[key]))]


@pytest.mark.parametrize("blocksize", [32, 128, 4096])
def test_other_block_sizes_load(nibble, llama, blocksize):
    directory = nibble.convert(llama(), "nf4", "--block-size", blocksize)
    model = load(directory)
    assert {model.get_submodule(name).weight.quant_state.blocksize for name in LINEAR} == {blocksize}
    # what reached the modules is what was stored; bitsandbytes' own CPU multiplication cannot be trusted for rows
    # that are no multiple of the block size (docs/model-directories.md)
    parts = stored.read(directory)
    for name in LINEAR:
        weight = model.get_submodule(name).weight
        assert raw(weight).numpy().tobytes() == parts[name + ".weight"].data
        assert raw(weight.quant_state.absmax).numpy().tobytes() == parts[name + ".weight.absmax"].data


@pytest.mark.parametrize("target", ["nf4", "fp4 --no-double-quant", "int8"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_lora_learns_and_leaves_the_base(nibble, llama, dtype, target):
    model = load(nibble.convert(llama(dtype), *target.split()))
    model = prepare_model_for_kbit_training(model)
    torch.manual_seed(0)
    adapter = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM")
    model = get_peft_model(model, adapter).train()
    base = {name: raw(p).clone() for name, p in model.named_parameters() if not p.requires_grad}
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    losses = []
    for _ in range(3):
        loss = model(input_ids=INPUTS["input_ids"], labels=INPUTS["input_ids"]).loss
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < losses[0]
    parameters = dict(model.named_parameters())
    assert all(torch.equal(data, raw(parameters[name])) for name, data in base.items())


# ---- files ----------------------------------------------------------------------------------------------------


def check_index(directory):
    index = json.loads((directory / "model.safetensors.index.json").read_text())
    files = sorted(p.name for p in directory.glob("*.safetensors"))
    assert files == [f"model-{i + 1:05}-of-{len(files):05}.safetensors" for i in range(len(files))]
    held = {name: file for file in files for name in stored.read(directory / file)}
    assert index["weight_map"] == held
    assert list(index["weight_map"]) == sorted(held)
    assert index["metadata"]["total_size"] == sum(len(part.data) for part in stored.read(directory).values())
    return files, index


@pytest.mark.parametrize("target", [*BITSANDBYTES, "fp8", "fp16"])
def test_index(nibble, llama, target):
    directory = nibble.convert(llama("bf16"), target, "--max-shard-size", "100KB")
    files, index = check_index(directory)
    assert len(files) > 3
    assert index["metadata"]["total_parameters"] == sum(p.numel() for p in load(llama("bf16")).parameters())
    sizes = [(directory / file).stat().st_size for file in files]
    assert sum(size > 110_000 for size in sizes) <= 2  # embeddings alone are larger
    single = nibble.convert(llama("bf16"), target)
    assert stored.read(directory) == stored.read(single)
    assert torch.equal(first_output(load(directory), INPUTS), first_output(load(single), INPUTS))


def test_keep_shards(nibble, llama):
    source = llama("fp32", sharded=True)
    directory = nibble.convert(source, "nf4", "--keep-shards")
    files, _ = check_index(directory)
    assert files == sorted(p.name for p in source.glob("*.safetensors"))
    for file in files:
        names = {name.split(".absmax")[0].split(".quant_")[0].split(".nested_")[0]
                 for name in stored.read(directory / file)}  # fmt: skip
        assert names == set(stored.read(source / file))


def test_shards_become_one_file(nibble, llama):
    directory = nibble.convert(llama(sharded=True), "nf4")
    assert (directory / "model.safetensors").exists() and not list(directory.glob("*.index.json"))
    assert stored.read(directory) == stored.read(nibble.convert(llama(), "nf4"))


def test_header_is_that_of_safetensors(nibble, llama, tmp_path):
    from safetensors.torch import load_file, save_file

    directory = nibble.convert(llama("bf16"), "nf4")
    save_file(load_file(directory / "model.safetensors"), tmp_path / "again.safetensors", metadata={"format": "pt"})
    assert (directory / "model.safetensors").read_bytes() == (tmp_path / "again.safetensors").read_bytes()


def test_config_is_kept_as_text(nibble, llama, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(llama("bf16"), source)
    config = json.loads((source / "config.json").read_text())
    config.pop("dtype")
    members = [f'"{key}":  {json.dumps(value)}' for key, value in config.items()]
    members += ['"note": "caf\\u00e9 \\/ 你好"', '"limit": Infinity', '"long": 123456789012345678901234567890']
    text = "{ " + "\n , ".join(members) + "\n}"
    (source / "config.json").write_text(text)
    directory = nibble.convert(source, "nf4")
    patched = (directory / "config.json").read_text()
    assert patched.startswith(text.rstrip("}").rstrip())
    added = json.loads("{" + patched[len(text.rstrip("}").rstrip()) :].lstrip().removeprefix(","))
    assert added.keys() == {"dtype", "torch_dtype", "quantization_config"}
    load(directory)


def test_other_files_are_carried_over(nibble, llama, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(llama(), source)
    files = {"tokenizer.json": '{"version": "1.0"}', "tokenizer.model": "\0\1\2", "chat_template.jinja": "{{ x }}",
             "vocab.txt": "a\nb\n", "merges.txt": "a b\n", "README.md": "# card", "modeling_own.py": "x = 1\n",
             "1_Pooling/config.json": "{}"}  # fmt: skip
    for name, text in files.items():
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text(text)
    (source / "script.sh").write_text("#!/bin/sh\n")
    (source / "script.sh").chmod(0o755)
    (source / "linked.txt").symlink_to("vocab.txt")
    (source / "pytorch_model.bin").write_bytes(b"weights of another container")
    (source / "model.safetensors.index.json.bak").write_text("old")
    directory = nibble.convert(source, "nf4")
    for name, text in files.items():
        assert (directory / name).read_text() == text
    assert (directory / "generation_config.json").read_bytes() == (source / "generation_config.json").read_bytes()
    assert (directory / "script.sh").stat().st_mode & 0o777 == 0o755
    assert not (directory / "linked.txt").is_symlink() and (directory / "linked.txt").read_text() == "a\nb\n"
    assert not (directory / "pytorch_model.bin").exists()
    names = {tensor["name"] for tensor in json.loads((directory / "nibble.json").read_text())["tensors"]}
    assert names == set(stored.read(source))


def test_a_changed_byte_is_noticed(nibble, llama):
    """The comparison of outputs can fail: one wrong code is seen."""
    directory = nibble.convert(llama(), "nf4", "--no-double-quant")
    expected = first_output(load(directory), INPUTS)
    entries, begin = stored.header(directory / "model.safetensors")
    offset = begin + entries["model.layers.0.mlp.up_proj.weight"]["data_offsets"][0]
    with open(directory / "model.safetensors", "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x10]))
    assert not torch.equal(first_output(load(directory), INPUTS), expected)


def test_a_lost_state_is_noticed(nibble, llama):
    directory = nibble.convert(llama(), "int8")
    edit_config(directory, quantization_config=None)
    with pytest.raises(AssertionError, match="unexpected_keys"):
        load(directory)
