"""python -m nibble: what it found, and why not."""

import importlib.metadata
import json
import os
import subprocess
import sys

import nibble
import pytest
from nibble.diagnosis import PACKAGES, diagnose, lines


def run(*words, **environment):
    done = subprocess.run([sys.executable, "-m", "nibble", *words], env=os.environ | environment, text=True,
                          capture_output=True)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_json_has_the_facts_of_this_process(monkeypatch):
    facts = json.loads(run("--json"))
    assert facts["version"] == nibble.__version__
    assert facts["cpu_target"] in facts["cpu_targets"]
    assert facts["packages"]["numpy"] == importlib.metadata.version("numpy")
    assert set(facts["packages"]) == set(PACKAGES)
    assert os.path.isfile(facts["library"])


def test_a_target_that_the_environment_names_is_in_use():
    facts = json.loads(run("--json", NIBBLE_CPU_TARGET="SCALAR"))
    assert facts["cpu_target"] == "SCALAR" and facts["cpu_extensions"] == []


def test_extensions_stand_behind_the_target():
    cpu = {"cpu_target": "AVX3", "cpu_targets": ["AVX3", "SSE4"], "cpu_extensions": ["AMX_BF16"]}
    line = next(line for line in lines(diagnose() | cpu) if line.startswith("CPU "))
    assert line.split(maxsplit=1)[1] == "AVX3 AMX_BF16 (targets: AVX3 SSE4)"


def test_a_library_that_cannot_be_loaded_is_a_reason():
    facts = json.loads(run("--json", NIBBLE_LIBRARY="/nowhere/libnibble.so", NIBBLE_CUDA_LIBRARY="/nowhere/cuda.so",
                           NIBBLE_TORCH_LIBRARY="/nowhere/torch.so"))  # fmt: skip
    assert facts["version"] is None and facts["why"].startswith("/nowhere/libnibble.so cannot be loaded: ")
    assert facts["cuda"]["device"] is None and "/nowhere/cuda.so" in facts["cuda"]["why"]
    assert not facts["operators"]["loaded"] and facts["operators"]["why"]


def test_what_stands_behind_bitsandbytes():
    pytest.importorskip("bitsandbytes")
    facts = json.loads(run("--json", NIBBLE_BITSANDBYTES="False"))
    assert facts["bitsandbytes"] == {"replaced": [], "why": "NIBBLE_BITSANDBYTES is False"}


def test_what_turns_nibble_off_behind_bitsandbytes(monkeypatch):
    pytest.importorskip("torch")
    from nibble import backend

    for value, off in {"0": True, "off": True, "No": True, "": False, "1": False, "true": False}.items():
        monkeypatch.setenv("NIBBLE_BITSANDBYTES", value)
        assert backend.is_turned_off() == off, value


def test_why_nibble_could_not_stand_behind_bitsandbytes(tmp_path):
    pytest.importorskip("bitsandbytes")
    installed = tmp_path / "nibble-0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: nibble\nVersion: 0\n")
    (installed / "entry_points.txt").write_text("[bitsandbytes.backends]\nnibble = nibble.backend:entry_point\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])

    def facts(**environment):
        return json.loads(run("--json", PYTHONPATH=path, **environment))["bitsandbytes"]

    assert facts()["replaced"]
    for says, found in {
        "/nowhere/torch.so: cannot be loaded: ": facts(NIBBLE_TORCH_LIBRARY="/nowhere/torch.so"),
        "NIBBLE_CPU_TARGET: ": facts(NIBBLE_CPU_TARGET="none"),
    }.items():
        assert not found["replaced"] and found["why"].startswith(says)


def test_the_text_has_a_line_for_each_fact():
    text = run()
    for name in ("nibble", "libnibble", "CPU", "CUDA", "packages", "torch.ops.nibble", "behind bitsandbytes"):
        assert [line for line in text.splitlines() if line.startswith(name)], name


def test_the_text_of_what_is_missing():
    facts = diagnose() | {"packages": dict.fromkeys(PACKAGES)}
    facts["cuda"] = {"library": None, "device": None, "why": "no driver"}
    facts["bitsandbytes"] = {"replaced": ["bitsandbytes::gemm_4bit"], "why": None}
    text = "\n".join(lines(facts))
    assert "not used: no driver" in text and "torch (not installed)" in text and "gemm_4bit" in text
