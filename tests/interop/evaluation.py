"""What the tests of nibble.evaluate share: the command, and a tiny Llama with an opinion."""

import contextlib
import io
import json
import os
import subprocess
import sys

import pytest
import torch
from conftest import ROOT
from transformers import LlamaConfig, LlamaForCausalLM

sys.path[:0] = [str(ROOT / "python"), str(ROOT / "examples")]
import minilm  # noqa: F401
import train_llama
from nibble.evaluate import main

TEXT = ROOT / "LICENSE"
VOCABULARY = 384
CONTEXT = 64


def process(*arguments, environment=None):
    """The command as users call it. To import torch takes it seconds, so most tests call main()."""
    command = [sys.executable, "-m", "nibble.evaluate", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")} | (environment or {})
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    return done.returncode, done.stdout, done.stderr


def inside(*arguments):
    code, out, err = 0, io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as end:
            code = end.code
    return code, out.getvalue(), err.getvalue()


def printed(*arguments, run=inside):
    code, out, errors = run(*arguments)
    assert code == 0 and errors == "", errors
    return out


def report(*arguments, run=inside):
    return json.loads(printed(*arguments, "--json", run=run))


def fails(code, *arguments, run=inside):
    found, out, errors = run(*arguments)
    assert found == code, out + errors
    assert out == "" and errors.startswith("error: ") and errors.count("\n") == 1, errors
    return errors.removeprefix("error: ").rstrip("\n")


@pytest.fixture(scope="module")
def tokenizer():
    return train_llama.make_tokenizer([TEXT.read_text()], VOCABULARY)


@pytest.fixture(scope="module")
def llama(tmp_path_factory, tokenizer):
    """A Llama of four layers that has seen its test text often enough to have an opinion."""
    directory = tmp_path_factory.mktemp("evaluate") / "llama"
    config = LlamaConfig(hidden_size=128, intermediate_size=256, num_hidden_layers=4, num_attention_heads=2,
                         num_key_value_heads=2, vocab_size=VOCABULARY, max_position_embeddings=CONTEXT,
                         bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id)  # fmt: skip
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    tokens = torch.tensor(tokenizer(TEXT.read_text())["input_ids"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(40):
        batch = torch.stack([tokens[i : i + CONTEXT] for i in torch.randint(len(tokens) - CONTEXT, (4,))])
        optimizer.zero_grad()
        train_llama.loss_of(model, batch).backward()
        optimizer.step()
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def variant(llama, tmp_path_factory):
    """variant(change): the Llama's directory again, after change(model)."""

    def make(change):
        directory = tmp_path_factory.mktemp("variant") / "llama"
        model = LlamaForCausalLM.from_pretrained(llama)
        with torch.no_grad():
            change(model)
        model.save_pretrained(directory)
        return directory

    return make
