"""The program seen from outside: JSON, exit codes, and what a stopped run leaves."""

import json
import signal
import struct
import subprocess
import time

import pytest
import stored
import torch
from conftest import left_of
from models import save_llama
from safetensors.torch import save_file


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return save_llama(tmp_path_factory.mktemp("llama"), "bf16")


def test_json_report(nibble, llama):
    out = nibble.output(llama)
    done = nibble.run("convert", llama, out, "--to", "nf4", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["architecture"] == "LlamaForCausalLM"
    assert report["tensors_by_codec"] == {"keep": 7, "nf4": 14}
    assert report["source_bytes"] == sum(len(part.data) for part in stored.read(llama).values())
    assert report["stored_bytes"] == sum(len(part.data) for part in stored.read(out).values())
    weights = report["source_bytes"] / 2
    assert report["bits_per_weight"] == pytest.approx(8 * report["stored_bytes"] / weights)
    assert report["shards"] == 1


def test_dry_run_tells_what_a_run_does(nibble, llama):
    out = nibble.output(llama)
    done = nibble.run("convert", llama, out, "--to", "nf4", "--dry-run", "--json", "--max-shard-size", "100KB")
    assert done.returncode == 0 and left_of(out) == []
    planned = json.loads(done.stdout)
    nibble.run("convert", llama, out, "--to", "nf4", "--max-shard-size", "100KB")
    manifest = json.loads((out / "nibble.json").read_text())
    for key in ("name", "codec", "reason", "stored_bytes"):
        assert [t[key] for t in planned["tensors"]] == [t[key] for t in manifest["tensors"]]
    assert planned["shards"] == len(list(out.glob("*.safetensors"))) > 1
    assert planned["stored_bytes"] == manifest["stored_bytes"]


def test_dry_run_as_a_table(nibble, llama):
    out = nibble.output(llama)
    done = nibble.run("convert", llama, out, "--to", "int8", "--dry-run")
    assert done.returncode == 0 and left_of(out) == []
    assert "\n21 tensors: 14 int8, 7 keep; " in done.stdout and "lm_head.weight" in done.stdout


def test_the_manifest_is_true(nibble, llama):
    out = nibble.convert(llama, "nf4", "--max-shard-size", "100KB")
    manifest = json.loads((out / "nibble.json").read_text())
    held = {(file.name, name): part for file in out.glob("*.safetensors") for name, part in stored.read(file).items()}
    listed = {(tensor["file"], part["name"]): part for tensor in manifest["tensors"] for part in tensor["parts"]}
    assert listed.keys() == held.keys()
    for key, part in listed.items():
        assert (part["dtype"], tuple(part["shape"]), part["bytes"]) == (
            held[key].dtype, held[key].shape, len(held[key].data))  # fmt: skip
    assert str(out) not in (out / "nibble.json").read_text()


def test_equal_runs_give_equal_bytes(nibble, llama):
    first, second = (nibble.convert(llama, "nf4", *threads) for threads in ([], ["--threads", 2]))
    names = sorted(p.name for p in first.iterdir())
    assert names == sorted(p.name for p in second.iterdir())
    assert all((first / name).read_bytes() == (second / name).read_bytes() for name in names)


@pytest.mark.parametrize("arguments", [[], ["convert"], ["convert", "IN", "OUT"],
                                       ["convert", "IN", "OUT", "--to", "int3"],
                                       ["convert", "IN", "OUT", "--to", "nf4", "--block-size", "48"],
                                       ["convert", "IN", "OUT", "--to", "nf4", "--skip", "("],
                                       ["convert", "IN", "OUT", "--to", "nf4", "--tensor", "x"],
                                       ["convert", "IN", "IN", "--to", "nf4"],
                                       ["convert", "IN", "OUT", "--to", "nf4", "--surprise"]])  # fmt: skip
def test_usage_errors(nibble, llama, arguments):
    out = nibble.output(llama)
    done = nibble.run(*[{"IN": llama, "OUT": out}.get(a, a) for a in arguments])
    assert done.returncode == 2, done.stderr
    assert done.stderr.strip() and left_of(out) == []


def test_bad_input(nibble, tmp_path):
    out = nibble.output(tmp_path)
    text = tmp_path / "text.safetensors"
    text.write_text("no safetensors at all, and longer than eight bytes")
    cut = tmp_path / "cut.safetensors"
    save_file({"w.weight": torch.ones(64, 64)}, cut)
    cut.write_bytes(cut.read_bytes()[:-1])
    missing = tmp_path / "nothing-here"
    for path in (text, cut, missing, tmp_path):
        done = nibble.run("convert", path, out, "--to", "nf4")
        assert done.returncode == 3, (path, done.returncode, done.stderr)
        assert done.stderr.count("\n") == 1 and done.stderr.startswith("error: ")


def test_output_exists(nibble, llama):
    out = nibble.convert(llama, "nf4")
    before = {p.name: p.read_bytes() for p in out.iterdir()}
    done = nibble.run("convert", llama, out, "--to", "int8")
    assert done.returncode == 6 and done.stderr.startswith("error: ")
    assert {p.name: p.read_bytes() for p in out.iterdir()} == before
    done = nibble.run("convert", llama, out, "--to", "int8", "--overwrite")
    assert done.returncode == 0
    assert any(name.endswith(".SCB") for name in stored.read(out)) and left_of(out) == [out.name]


def large_file(path, rows=300_000):
    """8 KB times `rows` of zeros, which take no space on the disk."""
    entry = {"dtype": "F32", "shape": [rows, 2048], "data_offsets": [0, rows * 8192]}
    header = json.dumps({"large.proj.weight": entry})
    header += " " * (-len(header) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header.encode())
        file.truncate(8 + len(header) + rows * 8192)


@pytest.mark.parametrize("number,code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_run_leaves_nothing(nibble, tmp_path, number, code):
    large_file(tmp_path / "large.safetensors")
    out = tmp_path / "out.safetensors"
    command = [nibble.path, "convert", tmp_path / "large.safetensors", out, "--to", "nf4", "--threads", "1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not left_of(out) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    assert process.poll() is None, "it was done before it could be stopped"
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code
    assert errors.startswith("error: interrupted") and errors.count("\n") == 1
    assert left_of(out) == []


def test_two_runs_into_one_output(nibble, tmp_path):
    large_file(tmp_path / "large.safetensors")
    out = tmp_path / "out.safetensors"
    command = [nibble.path, "convert", tmp_path / "large.safetensors", out, "--to", "nf4", "--threads", "1"]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not left_of(out) and first.poll() is None:
        time.sleep(0.005)
    second = nibble.run(*command[1:])
    assert second.returncode == 6 and second.stderr.startswith("error: ")
    first.send_signal(signal.SIGINT)
    assert first.wait(60) == 130
