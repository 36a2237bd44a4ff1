"""nibble.load() takes at most a tenth more memory than the directory has bytes."""

import pathlib
import re

import nibble
import torch
from tiny_models import convert, save

SIZES = dict(hidden_size=1024, intermediate_size=2816, num_attention_heads=8, num_key_value_heads=8, vocab_size=512)


def bytes_of(field):
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(rf"^{field}:\s*(\d+) kB", status, re.M)[1]) * 1024


def test_peak_memory_of_load(tmp_path):
    save(tmp_path / "plain", "Llama", **SIZES, num_hidden_layers=8)
    large = convert(tmp_path / "plain", tmp_path / "large", "--to", "nf4")
    save(tmp_path / "plain of one layer", "Llama", **SIZES, num_hidden_layers=1)
    small = convert(tmp_path / "plain of one layer", tmp_path / "small", "--to", "nf4")
    size = sum(file.stat().st_size for file in large.glob("*.safetensors"))
    tensors = nibble.open(large)
    plain = sum(tensors.info(name).bytes for name in tensors if "_proj" not in name)
    assert size > 35e6 and plain < size / 10

    with torch.inference_mode():
        nibble.load(small)(torch.arange(8)[None])  # what is imported and allocated once
        pathlib.Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts anew
        resident, own = bytes_of("VmRSS"), bytes_of("RssAnon")
        model = nibble.load(large)
        assert bytes_of("RssAnon") - own <= plain + 0.1 * size  # of this process alone
        model(torch.arange(8)[None])
        assert sum(p.numel() * p.element_size() for p in model.parameters()) > 0.9 * size - 2e6
    assert bytes_of("VmHWM") - resident <= 1.1 * size
