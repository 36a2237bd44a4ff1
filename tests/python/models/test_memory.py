"""nibble.load() takes at most a tenth more memory than the directory has bytes."""

import gc
import multiprocessing
import pathlib
import re

import nibble
import torch
from tiny_models import convert, save

SIZES = dict(hidden_size=1024, intermediate_size=2816, num_attention_heads=8, num_key_value_heads=8, vocab_size=512)


def bytes_of(field):
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(rf"^{field}:\s*(\d+) kB", status, re.M)[1]) * 1024


def growth(directory):
    """Bytes that loading adds to this process' own memory, and load and forward to the peak of all that is resident."""
    gc.collect()
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts anew
    resident, own = bytes_of("VmRSS"), bytes_of("RssAnon")
    with torch.inference_mode():
        model = nibble.load(directory)
        own = bytes_of("RssAnon") - own
        model(torch.arange(8)[None])
    return own, bytes_of("VmHWM") - resident


def test_peak_memory_of_load(tmp_path):
    directories, sizes = [], []
    for layers in (1, 8):
        save(tmp_path / f"plain-{layers}", "Llama", **SIZES, num_hidden_layers=layers)
        directories.append(convert(tmp_path / f"plain-{layers}", tmp_path / f"nf4-{layers}", "--to", "nf4"))
        sizes.append(sum(file.stat().st_size for file in directories[-1].glob("*.safetensors")))
    # In a process of its own, whose heap has no holes that other tests left.
    with multiprocessing.get_context("spawn").Pool(1) as process:
        # The first time, what is imported and allocated once.
        _, small, large = process.map(growth, [directories[0], *directories], chunksize=1)
    allowed = 1.1 * (sizes[1] - sizes[0])  # what a forward needs besides is the same for both
    assert large[0] - small[0] <= 0.1 * allowed
    assert 0.8 * allowed <= large[1] - small[1] <= allowed
