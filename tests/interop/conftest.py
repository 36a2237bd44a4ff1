"""nibble against the programs that read its output. See tests/run.sh for the environment.

The quick way, with the peers installed somewhere:

    NIBBLE=build/release/nibble NIBBLE_TRANSFORMERS4=DIR python -m pytest tests/interop
"""

import functools
import itertools
import json
import logging
import os
import pathlib
import re
import shutil
import subprocess

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the references are those of the CPU
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parents[2]

transformers.utils.logging.disable_progress_bar()
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
torch.set_num_threads(1)  # the models are tiny: threads would only wait for each other


def pytest_configure(config):
    config.addinivalue_line("filterwarnings", "ignore:.*(gradient_checkpointing|use_reentrant)")  # peft's own calls


def program():
    path = pathlib.Path(os.environ.get("NIBBLE", ROOT / "build" / "release" / "nibble")).resolve()
    if not path.is_file():
        pytest.fail(f"{path} does not exist: build it (tests/run.sh) or name it in NIBBLE", pytrace=False)
    return path


@functools.cache
def codecs():
    """{name: what `nibble formats --json` says of it}"""
    done = subprocess.run([program(), "formats", "--json"], check=True, capture_output=True, text=True)
    return {codec["name"]: codec for codec in json.loads(done.stdout)["codecs"]}


def pytest_generate_tests(metafunc):
    """A test with an argument `any_codec` is made for every codec that changes weights."""
    if "any_codec" in metafunc.fixturenames:
        metafunc.parametrize("any_codec", [name for name in codecs() if name != "keep"])


class Nibble:
    """The program. convert() expects success, fails() an exit code and one line that says why."""

    def __init__(self, path, scratch):
        self.path = path
        self._scratch = scratch
        self._numbers = itertools.count()

    def run(self, *arguments):
        command = [self.path, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=300)

    def output(self, source):
        """A path that does not exist yet; a file for a file, a directory for a directory."""
        suffix = "".join(pathlib.Path(source).suffixes[-1:]) if pathlib.Path(source).is_file() else ""
        return self._scratch / f"out-{next(self._numbers)}{suffix}"

    def convert(self, source, to, *options):
        out = self.output(source)
        done = self.run("convert", source, out, "--to", to, "--progress", "none", *options)
        assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr}"
        self.warnings = re.findall(r"^warning: (.*)$", done.stderr, re.MULTILINE)
        return out

    @staticmethod
    def plain_absmax(codec):
        """Options that leave the absmax of a codec in fp32. Only codecs that can quantize it take the option."""
        options = {option["name"] for option in codecs()[codec]["options"]}
        return ["--no-double-quant"] if "double-quant" in options else []

    def fails(self, code, source, to, *options):
        """The text of the error. The output must not exist afterwards, nor anything beside it."""
        out = self.output(source)
        done = self.run("convert", source, out, "--to", to, "--progress", "none", *options)
        assert done.returncode == code, f"exit code {done.returncode}, not {code}: {done.stdout}{done.stderr}"
        errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        assert len(errors) == 1, done.stderr
        assert left_of(out) == []
        return errors[0].removeprefix("error: ")


def left_of(out):
    """What exists of an output: itself, its manifest, its partial directory."""
    return sorted(p.name for p in out.parent.iterdir() if p.name.removeprefix(".").startswith(out.name))


@pytest.fixture(scope="session")
def nibble_path():
    return program()


@pytest.fixture(scope="module")
def nibble(nibble_path, tmp_path_factory):
    scratch = tmp_path_factory.mktemp("nibble")
    yield Nibble(nibble_path, scratch)
    shutil.rmtree(scratch, ignore_errors=True)
