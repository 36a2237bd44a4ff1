"""all-MiniLM-L6-v2 and the sentences by which the quality of its quantization is judged."""

import os
import random
import re
import subprocess
import sys
from pydoc_data import topics

import record
import torch

sys.path.insert(0, str(record.ROOT / "examples"))
import minilm

CALIBRATED, JUDGED, BATCH = 256, 300, 20


def sentences():
    """(those to calibrate on, others to judge by): sentences of Python's documentation of 40 to 300 characters."""
    text = " ".join(topics.topics[name] for name in sorted(topics.topics))
    found = re.split(r"(?<=[.!?]) ", re.sub(r"\s+", " ", text))
    found = sorted({sentence for sentence in found if 40 <= len(sentence) <= 300})
    random.Random(0).shuffle(found)
    calibrated, judged = found[:CALIBRATED], found[CALIBRATED : CALIBRATED + JUDGED]
    return calibrated, sorted(judged, key=len)  # less padding


original = minilm.model_directory  # where it is


def load(directory):
    """(model, tokenizer)"""
    return minilm.load(directory)[:2]


def calibrate(text, folder, *options):
    """Statistics of the original model on these sentences, in a directory in `folder`."""
    (folder / "text").write_text("\n".join(text))
    environment = os.environ | {"PYTHONPATH": str(record.ROOT / "python"), "HF_HUB_OFFLINE": "1"}
    subprocess.run([sys.executable, "-m", "nibble.calibrate", original(), "--text", folder / "text",
                    "--out", folder / "stats", "--batch", "8", "--threads", "1", "--progress", "none", *options],
                   check=True, env=environment)  # fmt: skip
    return folder / "stats"


def linear(model):
    """{name: layer}"""
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, torch.nn.Linear)}


def passes(model, tokenizer, text, hook=None):
    """One unit vector per sentence. `hook` is given each linear layer and what it is fed with."""
    mask = None  # of the current batch

    def rows(x):
        return x if x.dim() == 2 else x[mask]  # the pooler gets one token of each sentence

    hooks = [] if hook is None else [
        layer.register_forward_pre_hook(lambda _, args, name=name: hook(name, rows(args[0])))
        for name, layer in linear(model).items()]  # fmt: skip
    vectors = []
    with torch.no_grad():
        for first in range(0, len(text), BATCH):
            batch = tokenizer(text[first : first + BATCH], padding=True, truncation=True, return_tensors="pt")
            mask = batch["attention_mask"].bool()
            states, weights = model(**batch).last_hidden_state.double(), mask.unsqueeze(-1).double()
            vectors.append((states * weights).sum(1) / weights.sum(1))
    for one in hooks:
        one.remove()
    return torch.nn.functional.normalize(torch.cat(vectors), dim=1)


def lost(vectors, reference):
    """1 - cosine of the sentences: its mean, with the standard error, and the worst."""
    each = 1 - (vectors * reference).sum(1)
    return {"one_minus_cosine_mean": each.mean().item(), "standard_error": each.std().item() / len(each) ** 0.5,
            "one_minus_cosine_worst": each.max().item()}  # fmt: skip


def decibels(ratio):
    return 10 * torch.log10(torch.as_tensor(ratio, dtype=torch.float64)).item()
