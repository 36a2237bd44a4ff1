"""Tiny models with random weights and a tokenizer of bytes, their statistics computed directly, and the command."""

import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys

import nibble.calibration
import numpy as np
import torch
import transformers
from nibble.calibrate.__main__ import main
from nibble.model_error import lines, sequences
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

ROOT = pathlib.Path(__file__).parents[3]
VOCABULARY = 260
SMALL = dict(vocab_size=VOCABULARY, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=48, bos_token_id=256, eos_token_id=257, initializer_range=0.1)  # fmt: skip
CONFIGS = {
    "Llama": transformers.LlamaConfig(**SMALL, intermediate_size=112),
    "Qwen3Moe": transformers.Qwen3MoeConfig(
        **SMALL, intermediate_size=96, moe_intermediate_size=80, head_dim=16, num_experts=8, num_experts_per_tok=2
    ),
    "GptOss": transformers.GptOssConfig(
        **SMALL, intermediate_size=80, head_dim=16, num_local_experts=4, num_experts_per_tok=2, sliding_window=16
    ),
    "Gemma3": transformers.Gemma3TextConfig(**SMALL, intermediate_size=112, head_dim=16, sliding_window=16,
                                            layer_types=["sliding_attention", "full_attention", "sliding_attention"]),
    "GPT2": transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=64, n_layer=3, n_head=4, n_positions=48, bos_token_id=256, eos_token_id=257,
        initializer_range=0.1,
    ),
    "OPT": transformers.OPTConfig(
        vocab_size=VOCABULARY, hidden_size=64, word_embed_proj_dim=32, ffn_dim=112, num_hidden_layers=3,
        num_attention_heads=4, max_position_embeddings=48, bos_token_id=256, eos_token_id=257,
    ),
    "Bert": transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=112,
        max_position_embeddings=48, initializer_range=0.1,
    ),
}  # fmt: skip
CLASSES = {"GPT2": "GPT2LMHeadModel", "Bert": "BertModel"}
TEXT = (ROOT / "LICENSE").read_text()[1000:3000]


def tokenizer():
    """A token for each byte, and <s> before a text."""
    alphabet = {token: i for i, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    made = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<s>", "</s>", "<pad>"])
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 256)])
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, **special)


def save(directory, name, dtype=torch.float32, change=None, **changes):
    torch.manual_seed(0)
    config = CONFIGS[name].__class__.from_dict(CONFIGS[name].to_dict() | changes)
    model = getattr(transformers, CLASSES.get(name, f"{name}ForCausalLM"))(config).to(dtype).eval()
    if change is not None:
        with torch.no_grad():
            change(model)
    model.save_pretrained(directory)
    tokenizer().save_pretrained(directory)
    return directory


def write(path, text=TEXT):
    path.write_text(text)
    return path


def inside(*arguments):
    code, out, err = 0, io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([*map(str, arguments), "--progress", "none"])
        except SystemExit as end:
            code = end.code
    return code, out.getvalue(), err.getvalue()


def process(*arguments):
    """The command as users call it."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "nibble.calibrate", *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, text=True, env=environment, **pipes)


def calibrated(model, text, out, *options):
    """The statistics, after the command has written them."""
    code, printed, errors = inside(model, "--text", text, "--out", out, *options)
    assert code == 0 and errors == "", errors
    return nibble.calibration.open(out)


def summary(model, text, out, *options):
    code, printed, errors = inside(model, "--text", text, "--out", out, "--json", *options)
    assert code == 0 and errors == "", errors
    return json.loads(printed)


def fails(code, *arguments):
    found, out, errors = inside(*arguments)
    assert found == code, out + errors
    assert out == "" and errors.startswith("error: ") and errors.count("\n") == 1, errors
    return errors.removeprefix("error: ").rstrip("\n")


def files(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def items_of(name, text, length=48):
    if name == "Bert":
        return lines(tokenizer(), text.read_text(), length, text)
    return sequences(tokenizer(), text.read_text(), length)[0]


def check_statistics(found, name, x, tolerance):
    """Each statistic against its definition. `tolerance`: of a product of two columns, relative to their RMS."""
    square, tokens = x.square().mean(0), len(x)
    assert (found.inputs[name].columns, found.inputs[name].tokens) == (x.shape[1], tokens)
    np.testing.assert_allclose(found.mean_square(name), square, rtol=tolerance)
    np.testing.assert_allclose(found.absmax(name), x.abs().amax(0), rtol=tolerance)
    if found.second_moments:
        error = torch.from_numpy(found.second_moment(name).copy()) - x.T @ x / tokens
        assert (error.abs() <= tolerance * (square[:, None] * square).sqrt()).all(), name


def expected(directory, items, **options):
    """{module, or experts parameter.number: X in fp64 [tokens, columns]}, by hooks, one sequence at a time."""
    encoder = "Bert" in json.loads((directory / "config.json").read_text())["architectures"][0]
    auto = transformers.AutoModel if encoder else transformers.AutoModelForCausalLM
    model = auto.from_pretrained(directory, **options).eval()
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    seen = {}

    def keep(name, x):
        seen.setdefault(name, []).append(x.detach().double().reshape(-1, x.shape[-1]))

    for name, module in model.named_modules():
        if isinstance(module, (torch.nn.Linear, transformers.pytorch_utils.Conv1D)):
            module.register_forward_pre_hook(lambda _, args, name=name: keep(name, args[0]))
        elif name.endswith(".mlp.gate"):
            module.register_forward_pre_hook(lambda _, args, name=name: keep(name, args[0]))
        elif name.endswith(".experts"):
            module.register_forward_pre_hook(lambda module, args, name=name: experts(keep, name, module, *args))
    with torch.no_grad():
        for tokens in items:
            model(torch.tensor([tokens]))
    return {name: torch.cat(parts) for name, parts in seen.items()}


def experts(keep, name, module, hidden, chosen, *_):
    """Qwen3's: each expert gets the tokens that chose it; down_proj gets silu(gate) * up of them."""
    for expert in range(len(module.gate_up_proj)):
        x = hidden[(chosen == expert).any(-1)]
        if len(x):
            keep(f"{name}.gate_up_proj.{expert}", x)
            gate, up = (x @ module.gate_up_proj[expert].T).chunk(2, -1)
            keep(f"{name}.down_proj.{expert}", torch.nn.functional.silu(gate) * up)
