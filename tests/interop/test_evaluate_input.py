"""python -m nibble.evaluate on what it can't measure: exit code 3, and one line that names the file and the fact."""

import json
import math
import os
import shutil
import types

import pytest
import torch
from evaluation import (CONTEXT, TEXT, VOCABULARY, fails, llama, minilm, report, tokenizer,  # noqa: F401
                        train_llama, variant)
from models import edit_config
from nibble.model_directory import BadInput
from nibble.model_error import HEADS, is_left_out, number
from transformers import LlamaConfig, LlamaForCausalLM


@pytest.mark.parametrize("name, is_out", [
    ("pooler.dense.weight", True), ("cls.predictions.bias", True), ("embeddings.position_ids", True),
    ("encoder.layer.0.output.dense.weight", False), ("pooler.dense.SCB", False), ("pooler.dense.weight_format", False),
    ("pooler.dense.weight.absmax", False), ("pooler.dense.weight.quant_state.bitsandbytes__nf4", False),
    ("pooler.dense.weight_scale", False)])  # fmt: skip
def test_only_parameters_of_heads_may_be_left_out(name, is_out):
    """A quantization state that is not found leaves a layer plain whose weights are codes."""
    assert is_left_out(name, HEADS) == is_out
    assert not is_left_out(name, ())


def test_bad_input(llama, variant, tokenizer, tmp_path):
    run = (llama, llama, "--text", TEXT)
    missing = tmp_path / "nothing-here"
    assert fails(3, missing, llama, "--text", TEXT) == f"{missing}: is not a directory"
    assert fails(3, llama, missing, "--text", TEXT) == f"{missing}: is not a directory"
    assert fails(3, llama, llama, "--text", missing) == f"{missing}: No such file or directory"
    empty = tmp_path / "empty"
    empty.mkdir()
    assert fails(3, llama, empty, "--text", TEXT) == f"{empty}/config.json: No such file or directory"
    (empty / "config.json").write_text("{")
    assert f"{empty}/config.json: " in fails(3, llama, empty, "--text", TEXT)
    assert fails(3, *run, "--context", 65) == f"{llama}: has 64 positions, --context is 65"

    short = tmp_path / "short.txt"
    short.write_text("the")
    count = len(tokenizer("the")["input_ids"])
    assert fails(3, llama, llama, "--text", short) == f"{short}: has {count} tokens, two windows of 64 take 128"
    short.write_bytes(b"caf\xe9 ")
    assert fails(3, llama, llama, "--text", short) == f"{short}: is not UTF-8: byte 3"
    assert "is a different kind of model (encoder)" in fails(3, llama, minilm.model_directory(), "--text", TEXT)

    other = variant(lambda model: None)
    train_llama.make_tokenizer([TEXT.read_text()], VOCABULARY - 50).save_pretrained(other)
    assert fails(3, llama, other, "--text", TEXT) == (
        f"{other}: its tokenizer splits {TEXT} into other tokens than the reference's")  # fmt: skip
    larger = variant(lambda model: model.resize_token_embeddings(VOCABULARY + 8))
    assert fails(3, llama, larger, "--text", TEXT) == (
        f"{larger}: its vocabulary has {VOCABULARY + 8} tokens, the reference's has {VOCABULARY}")  # fmt: skip
    narrow = tmp_path / "narrow"
    config = LlamaConfig(hidden_size=64, intermediate_size=64, num_hidden_layers=4, num_attention_heads=1,
                         vocab_size=VOCABULARY, max_position_embeddings=CONTEXT)  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(narrow)
    assert f"{narrow}: its layers are not those of the reference" in fails(3, llama, narrow, "--text", TEXT)
    report(llama, narrow, "--text", TEXT, "--layer-batches", 0, "--windows", 2)
    deeper = variant(lambda model: None)
    edit_config(deeper, num_hidden_layers=5)
    assert f"{deeper}: missing keys: model.layers.4." in fails(3, llama, deeper, "--text", TEXT)
    broken = variant(lambda model: model.lm_head.weight.fill_(math.nan))
    assert f"{broken}: a logit is not finite" in fails(3, llama, broken, "--text", TEXT)


@pytest.fixture
def copy_of(llama, tmp_path):
    """The Llama's directory again, in which a test breaks something."""
    shutil.copytree(llama, tmp_path / "copy")
    return tmp_path / "copy"


def test_a_truncated_file(llama, copy_of):
    path = copy_of / "model.safetensors"
    whole = path.read_bytes()
    for size in (0, 4, 100, len(whole) - 1):
        path.write_bytes(whole[:size])
        for arguments in ((llama, copy_of), (copy_of, llama)):
            assert fails(3, *arguments, "--text", TEXT).startswith(f"{path}: "), size


def test_a_truncated_shard(llama, copy_of):
    LlamaForCausalLM.from_pretrained(llama).save_pretrained(copy_of, max_shard_size="500KB")
    (copy_of / "model.safetensors").unlink()
    path = sorted(copy_of.glob("model-*.safetensors"))[-1]
    report(llama, copy_of, "--text", TEXT, "--windows", 2)
    path.write_bytes(path.read_bytes()[:-1])
    assert fails(3, llama, copy_of, "--text", TEXT).startswith(f"{path}: ")
    path.unlink()
    assert fails(3, llama, copy_of, "--text", TEXT) == f"{path}: No such file or directory"


def test_a_shard_elsewhere(llama, copy_of, tmp_path):
    index = copy_of / "model.safetensors.index.json"
    os.mkfifo(tmp_path / "pipe.safetensors")
    index.write_text(json.dumps({"weight_map": {"lm_head.weight": "../pipe.safetensors"}}))
    assert fails(3, llama, copy_of, "--text", TEXT) == f"{copy_of}/../pipe.safetensors: is not a regular file"
    for content in ([], {"weight_map": 5}, {"weight_map": {"lm_head.weight": 5}}, {}):
        index.write_text(json.dumps(content))
        assert fails(3, llama, copy_of, "--text", TEXT) == f"{index}: 'weight_map' is not an object of file names"
    index.write_text(json.dumps({"weight_map": {"lm_head.weight": "a\0b"}}))
    assert fails(3, llama, copy_of, "--text", TEXT).endswith(": embedded null byte")


def test_a_truncated_pickle(llama, copy_of):
    (copy_of / "model.safetensors").unlink()
    path = copy_of / "pytorch_model.bin"
    torch.save(LlamaForCausalLM.from_pretrained(llama).state_dict(), path)
    report(llama, copy_of, "--text", TEXT, "--windows", 2)
    path.write_bytes(path.read_bytes()[:-100])
    assert fails(3, llama, copy_of, "--text", TEXT).startswith(f"{path}: ")


@pytest.mark.parametrize("architectures", [5, "LlamaForCausalLM", {"a": 1}, [5], True])
def test_architectures_of_another_type(llama, copy_of, architectures):
    edit_config(copy_of, architectures=architectures)
    expected = f"{copy_of}/config.json: 'architectures' is not a list of names"
    assert fails(3, llama, copy_of, "--text", TEXT) == expected
    assert fails(3, copy_of, llama, "--text", TEXT) == expected


@pytest.mark.parametrize("fields", [{"hidden_size": "wide"}, {"hidden_size": 0}, {"vocab_size": []}, {"vocab_size": -1},
                                    {"max_position_embeddings": "many"}, {"max_position_embeddings": {}},
                                    {"num_hidden_layers": None}, {"num_hidden_layers": "4"}, {"dtype": 5},
                                    {"model_type": 5}, {"model_type": "none such"}, {"rope_parameters": 5},
                                    {"quantization_config": 5},
                                    {"architectures": [], "is_encoder_decoder": True}])  # fmt: skip
def test_a_config_of_other_types(llama, copy_of, fields):
    edit_config(copy_of, **fields)
    for arguments in ((llama, copy_of), (copy_of, llama)):
        assert fails(3, *arguments, "--text", TEXT).startswith(str(copy_of))


def test_numbers_of_other_types():
    """transformers 5 refuses them itself, transformers 4 hands them on."""
    config = types.SimpleNamespace(vocab_size="many", n_positions=64)
    with pytest.raises(BadInput, match="^DIR/config.json: 'vocab_size' is not a number$"):
        number(config, "vocab_size", "DIR")
    assert (number(config, "n_positions", "DIR"), number(config, "hidden_size", "DIR")) == (64, None)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
                                  "model.safetensors.index.json"])  # fmt: skip
def test_json_that_is_nested_deeply(llama, copy_of, name):
    (copy_of / name).write_text('{"a":' * 100_000 + "1" + "}" * 100_000)
    for arguments in ((llama, copy_of), (copy_of, llama)):
        assert fails(3, *arguments, "--text", TEXT) == f"{copy_of}/{name}: is nested too deeply"


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "generation_config.json",
                                  "pytorch_model.bin", "chat_template.jinja", "text"])  # fmt: skip
def test_a_pipe_is_not_waited_for(llama, copy_of, name):
    (copy_of / name).unlink(missing_ok=True)
    os.mkfifo(copy_of / name)
    text = copy_of / name if name == "text" else TEXT
    for arguments in ((llama, copy_of), (copy_of, llama)):
        assert fails(3, *arguments, "--text", text) == f"{copy_of / name}: is not a regular file"


def test_a_text_that_is_a_pipe(llama, tmp_path):
    os.mkfifo(tmp_path / "text")
    assert fails(3, llama, llama, "--text", tmp_path / "text") == f"{tmp_path}/text: is not a regular file"


def test_a_damaged_tokenizer(llama, copy_of):
    (copy_of / "tokenizer.json").write_text("{}")
    for arguments in ((llama, copy_of), (copy_of, llama)):
        assert fails(3, *arguments, "--text", TEXT).startswith(f"{copy_of}: its tokenizer: ")


def test_tokens_outside_of_the_vocabulary(variant, tokenizer):
    smaller = variant(lambda model: model.resize_token_embeddings(VOCABULARY // 2))
    tokenizer.save_pretrained(smaller)
    message = fails(3, smaller, smaller, "--text", TEXT)
    assert message.startswith(f"{smaller}: its tokenizer makes token ") and message.endswith(f" has {VOCABULARY // 2}")


def test_code_of_a_model_is_not_run(llama, copy_of, tmp_path):
    (copy_of / "surprise.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    edit_config(copy_of, model_type="surprise", auto_map={"AutoConfig": "surprise.Config"})
    assert fails(3, llama, copy_of, "--text", TEXT).startswith(f"{copy_of}/config.json: ")
    assert not (tmp_path / "ran").exists()


def test_a_lost_quantization_state(nibble, llama):
    directory = nibble.convert(llama, "int8")
    edit_config(directory, quantization_config=None)
    assert f"{directory}: " in fails(3, llama, directory, "--text", TEXT)
