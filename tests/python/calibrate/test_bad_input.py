"""python -m nibble.calibrate on what it can't calibrate: the exit code, and a line that names the file and the fact."""

import json
import math
import shutil
import sys

import pytest
import tiny
import torch
from nibble.calibrate import __main__ as command
from nibble.calibrate import job
from nibble.calibrate.inputs import Memory


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny.save(tmp_path_factory.mktemp("model") / "llama", "Llama")


@pytest.fixture
def copy_of(model, tmp_path):
    shutil.copytree(model, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.fixture
def fails(tmp_path):
    """fails(code, model, text, *options): the line; nothing is left."""

    def run(code, model, text, *options):
        line = tiny.fails(code, model, "--text", text, "--out", tmp_path / "out", *options)
        assert not (tmp_path / "out").exists()
        return line

    return run


def edit(directory, **changes):
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_texts(model, fails, tmp_path):
    text = tmp_path / "text"
    assert fails(3, model, text) == f"{text}: No such file or directory"
    for content, tokens in ((b"", 1), (b"x" * 46, 47)):
        text.write_bytes(content)
        assert fails(3, model, text) == f"{text}: has {tokens} tokens, a sequence takes 48"
    text.write_bytes(b"caf\xe9 ")
    assert fails(3, model, text) == f"{text}: is not UTF-8: byte 3"
    text.write_bytes(b"x" * 47)
    assert tiny.summary(model, text, tmp_path / "out")["tokens"] == 48


def test_lines(fails, tmp_path):
    model, text = tiny.save(tmp_path / "bert", "Bert"), tiny.write(tmp_path / "text", " \n\n")
    assert fails(3, model, text) == f"{text}: has no line with text"


def test_models(copy_of, fails, tmp_path):
    text = tiny.write(tmp_path / "text")
    assert fails(3, tmp_path / "missing", text) == f"{tmp_path}/missing: is not a directory"
    assert fails(3, copy_of, text, "--sequence-length", 49) == f"{copy_of}: has 48 positions, --sequence-length is 49"
    edit(copy_of, quantization_config={"quant_method": "bitsandbytes"})
    assert fails(3, copy_of, text) == f"{copy_of}: is quantized; calibrate the model that it was made from"
    edit(copy_of, quantization_config=None, vocab_size=256)
    assert fails(3, copy_of, text) == f"{copy_of}: its tokenizer makes token 256, its vocabulary has 256"
    edit(copy_of, vocab_size=tiny.VOCABULARY, architectures=["T5ForConditionalGeneration"])
    assert "is neither a language model" in fails(3, copy_of, text)


def test_directories_that_lack_something(copy_of, fails, tmp_path):
    text = tiny.write(tmp_path / "text")
    edit(copy_of, num_hidden_layers=4)
    assert f"{copy_of}: missing keys: model.layers.3." in fails(3, copy_of, text)
    assert f"{copy_of}: missing keys: model.layers.3." in fails(3, copy_of, text, "--layer-by-layer")
    whole = (copy_of / "model.safetensors").read_bytes()
    (copy_of / "model.safetensors").write_bytes(whole[:-1])
    assert fails(3, copy_of, text).startswith(f"{copy_of}/model.safetensors: ")
    (copy_of / "model.safetensors").unlink()
    assert fails(3, copy_of, text) == f"{copy_of}: has no weights (*.safetensors, *.bin)"
    for path in copy_of.glob("tokenizer*"):
        path.unlink()
    assert fails(3, copy_of, text) == f"{copy_of}: has no tokenizer"


def test_a_pickle(model, copy_of, tmp_path):
    """torch's own files: the same statistics."""
    import transformers

    text = tiny.write(tmp_path / "text")
    (copy_of / "model.safetensors").unlink()
    torch.save(transformers.LlamaForCausalLM.from_pretrained(model).state_dict(), copy_of / "pytorch_model.bin")
    ours = tiny.calibrated(copy_of, text, tmp_path / "a", "--sequences", 2)
    theirs = tiny.calibrated(model, text, tmp_path / "b", "--sequences", 2)
    assert ours.weights == theirs.weights and ours.inputs == theirs.inputs


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_inputs_that_are_not_finite(fails, tmp_path, value):
    model = tiny.save(tmp_path / "model", "Llama", change=lambda model: model.model.embed_tokens.weight.fill_(value))
    line = fails_later(tmp_path, model)
    assert line == "the input of 'model.layers.0.self_attn.q_proj.weight' is not finite, or too large for fp32"


def fails_later(tmp_path, model):
    """After the first stage: what is before the layers is kept."""
    text = tiny.write(tmp_path / "text")
    return tiny.fails(3, model, "--text", text, "--out", tmp_path / "out", "--sequences", 2, "--second-moments")


def test_squares_that_are_too_large(tmp_path):
    """fp32 has no 1e40."""

    def change(model):
        model.model.layers[0].input_layernorm.weight.fill_(1e20)

    line = fails_later(tmp_path, tiny.save(tmp_path / "model", "Llama", change=change))
    assert line == "the input of 'model.layers.0.self_attn.q_proj.weight' is not finite, or too large for fp32"


def test_a_lack_of_memory(model, tmp_path, monkeypatch):
    """The four inputs of a layer that have 64 columns take 8 x 64^2 bytes each, and that with 112 8 x 112^2."""
    monkeypatch.setattr(job, "weight_bytes", lambda *_: 0)
    text, needed = tiny.write(tmp_path / "text"), 8 * (4 * 64**2 + 112**2)
    monkeypatch.setattr(job, "free_memory", lambda device: needed)
    tiny.calibrated(model, text, tmp_path / "a", "--second-moments", "--sequences", 2)
    monkeypatch.setattr(job, "free_memory", lambda device: needed - 1)
    tiny.calibrated(model, text, tmp_path / "b", "--sequences", 2)
    line = tiny.fails(5, model, "--text", text, "--out", tmp_path / "c", "--second-moments", "--sequences", 2)
    weight = "model.layers.0.mlp.down_proj.weight"
    assert line == f"not enough memory: the second moments of {weight} take 0.00 GB, 0.00 GB are left"


def test_memory_that_is_taken():
    memory = Memory(3e9)
    memory.take(2_000_000_000, "x")
    with pytest.raises(MemoryError, match="^the second moments of y take 2.00 GB, 1.00 GB are left$"):
        memory.take(2_000_000_000, "y")
    memory.take(1_000_000_000, "z")


def test_free_memory(monkeypatch):
    texts = {"/proc/meminfo": ["MemTotal: 9000 kB", "MemAvailable:    2000 kB"]}
    monkeypatch.setattr(job, "lines_of", lambda path: texts.get(path, []))
    assert job.free_memory("cpu") == 2000 * 1024
    texts |= {"/sys/fs/cgroup/memory.max": ["max"], "/sys/fs/cgroup/memory.stat": ["anon 1000", "file 5000"]}
    assert job.free_memory("cpu") == 2000 * 1024
    texts["/sys/fs/cgroup/memory.max"] = ["5000"]
    assert job.free_memory("cpu") == 4000
    texts.clear()
    assert job.free_memory("cpu") == math.inf


def test_usage(model, fails, tmp_path, monkeypatch):
    text = tiny.write(tmp_path / "text")
    assert "invalid choice" in fails(2, model, text, "--dtype", "int8")
    assert "at least 1 is needed" in fails(2, model, text, "--batch", 0)
    if not torch.cuda.is_available():
        assert fails(2, model, text, "--device", "cuda") == "--device cuda: torch finds no GPU"
    monkeypatch.setitem(sys.modules, "transformers", None)
    for name in [name for name in sys.modules if name.startswith("nibble.calibrate.") and "main" not in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "nibble.model_error")
    assert fails(2, model, text).startswith("nibble.calibrate needs the Python packages torch and transformers: ")


def test_progress(monkeypatch, capsys):
    """From the fifth second on, a line every ten seconds, with the time that is left at the pace so far."""
    now = [0.0]
    monkeypatch.setattr(command.time, "monotonic", lambda: now[0])
    progress = command.Progress("plain")
    for batch in range(120):
        progress(f"layer-{batch // 10:05}", batch // 10, 20, batch % 10, 10)
        now[0] += 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["layer-00000: 1 of 20, batch 6 of 10, 3 min 15 s left",
                         "layer-00001: 2 of 20, batch 6 of 10, 3 min 5 s left"]  # fmt: skip
    assert len(lines) == 12
    silent = command.Progress("none")
    now[0] += 100
    silent("before", 0, 2, 0, 1)
    assert capsys.readouterr().err == ""


def test_progress_of_a_run_that_goes_on(monkeypatch, capsys):
    """Stages that an earlier run has done say nothing of the pace."""
    now = [0.0]
    monkeypatch.setattr(command.time, "monotonic", lambda: now[0])
    progress = command.Progress("plain")
    progress("layer-00008", 9, 12, 0, 10)
    now[0] = 60.0
    progress("layer-00009", 10, 12, 0, 10)
    assert capsys.readouterr().err == "layer-00009: 11 of 12, batch 1 of 10, 2 min 0 s left\n"


def test_progress_of_sensitivities(monkeypatch, capsys):
    """They are counted anew, and take a time of their own."""
    now = [0.0]
    monkeypatch.setattr(command.time, "monotonic", lambda: now[0])
    progress = command.Progress("plain")
    progress("before", 0, 2, 0, 1)
    progress("after", 1, 2, 0, 1)
    now[0] = 1000.0
    for weight in range(2):
        progress("sensitivities", 0, 2, weight, 4, "weight")
        now[0] += 20
    assert capsys.readouterr().err.splitlines() == [
        "sensitivities: 1 of 2, weight 1 of 4", "sensitivities: 1 of 2, weight 2 of 4, 2 min 20 s left"]  # fmt: skip


@pytest.mark.parametrize("seconds, text", [(0.4, "0 s"), (59.4, "59 s"), (60, "1 min 0 s"), (3599, "59 min 59 s"),
                                           (3600, "1 h 0 min"), (90_000, "25 h 0 min")])  # fmt: skip
def test_durations(seconds, text):
    assert command.duration(seconds) == text


def test_the_summary(model, tmp_path):
    text, out = tiny.write(tmp_path / "text"), tmp_path / "out"
    code, printed, errors = tiny.inside(model, "--text", text, "--out", out, "--sequences", 2, "--second-moments")
    assert (code, errors) == (0, "")
    assert printed.startswith(f"{out}: mean squares, absmax, second moments of 16 inputs, which 22 weights take; "
                              "value projections recognized: 3; 2 sequences, 96 tokens, ")  # fmt: skip
