#!/usr/bin/env python3
"""What advice gains at the same size, with and without statistics of the inputs, on small language models.

    build/peers/bin/python bench/advise.py MODEL=STATS...

MODEL is a directory that examples/train_llama.py wrote (its test.txt is what the model is judged by), and STATS the
statistics that `python -m nibble.calibrate MODEL --sensitivities` wrote. The model is cast to bf16 first, so that what
advice leaves as it is takes 16 bits. For each size, which is that of a uniform NF4, prints and writes to
bench/results/advise.jsonl the mean KL divergence (and its standard error over windows) of the next-token distributions
from the bf16 model's:

    uniform         NF4 with this block size for all linear layers
    plain           the best that transformers can load within the same bytes, by the errors of the weights
    calibrated      the same by the errors of the layers' outputs: statistics without the sensitivities
    sensitive       the same by the sensitivities
    equal           the same if all sensitivities were equal
    any, plain and so on: with --allow-nibble-only, where every tensor may have any codec

The spread says how far the sensitivities of all layers but the output layer are from being equal, and from being
proportional to the number of their weights: the standard deviation of the logarithms, as a factor.
"""

import argparse
import json
import pathlib
import shutil
import statistics
import subprocess
import tempfile

import record
import torch
import transformers

UNIFORM = ("nf4:block-size=64,double-quant=no", "nf4:block-size=32,double-quant=no")
BLOCKS = [f"nf4:block-size={size}" for size in (32, 64, 128, 256)] + ["int8"]
CONTEXT = 256


def load(directory):
    return transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()


def windows_of(directory, model):
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    tokens = tokenizer((directory / "test.txt").read_text(), return_tensors="pt")["input_ids"][0]
    windows = tokens[: len(tokens) // CONTEXT * CONTEXT].view(-1, CONTEXT).clone()
    windows[:, 0] = tokenizer.bos_token_id
    return windows


def log_probabilities(model, windows):
    with torch.no_grad():
        return torch.cat([model(window[None], use_cache=False).logits.log_softmax(-1) for window in windows])


def divergence(reference, model, windows):
    """Of each window: the mean of sum p log(p / q)."""
    found = []
    with torch.no_grad():
        for expected, window in zip(reference, windows, strict=True):
            given = model(window[None], use_cache=False).logits[0].log_softmax(-1)
            found.append((expected.exp() * (expected - given)).sum(-1).mean().double().item())
    return found


def mean_and_error(samples):
    return statistics.mean(samples), statistics.stdev(samples) / len(samples) ** 0.5


class Model:
    """A trained model in bf16, and what conversions make of it."""

    def __init__(self, nibble, source, stats, folder, windows):
        self.nibble, self.folder = nibble, folder
        self.stats = {"calibrated": variant(stats, folder / "calibrated", lambda found: found.pop("sensitivities")),
                      "sensitive": stats, "equal": variant(stats, folder / "equal", equal)}  # fmt: skip
        self.bf16 = folder / "bf16"
        self.run("convert", source, self.bf16, "--to", "bf16")
        self.windows = windows_of(source, self.bf16)[:windows]
        self.model = load(self.bf16)
        self.reference = log_probabilities(self.model, self.windows)

    def run(self, *command):
        done = subprocess.run([self.nibble, *map(str, command), "--json", "--progress", "none", "--overwrite"],
                              check=True, capture_output=True, text=True)  # fmt: skip
        return json.loads(done.stdout)

    def judge(self, *options):
        report = self.run("convert", self.bf16, self.folder / "out", *options)
        self.run("dequantize", self.folder / "out", self.folder / "plain", "--to", "fp32")
        found = mean_and_error(divergence(self.reference, load(self.folder / "plain"), self.windows))
        return report, {"kld": found[0], "standard_error": found[1], "bytes": report["stored_bytes"],
                        "bits_per_weight": report["bits_per_weight"],
                        "tensors_by_codec": report["tensors_by_codec"]}  # fmt: skip


def choices(model, uniform):
    report, figures = model.judge("--to", uniform)
    yield "uniform", figures
    size = ["--advise", f"{report['stored_bytes']}B"]
    for name, options in (("", []), ("any, ", ["--allow-nibble-only", *[f"--to={codec}" for codec in BLOCKS]])):
        yield name + "plain", model.judge(*size, *options)[1]
        for how, stats in model.stats.items():
            yield name + how, model.judge(*size, *options, "--calibration", stats)[1]


def variant(stats, folder, change):
    """Statistics with other sensitivities."""
    shutil.copytree(stats, folder)
    manifest = folder / "calibration.json"
    content = json.loads(manifest.read_text())
    change(content)
    manifest.write_text(json.dumps(content))
    return folder


def equal(manifest):
    manifest["sensitivities"] = dict.fromkeys(manifest["sensitivities"], 1)


def sensitivities(stats, model):
    weights = dict(model.named_parameters())
    manifest = json.loads((stats / "calibration.json").read_text())
    return {name: {"weights": weights[name].numel(), "sensitivity": value}
            for name, value in manifest["sensitivities"].items()}  # fmt: skip


def spread(values):
    return torch.tensor(values, dtype=torch.float64).log().std().exp().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    record.add_options(parser, "advise")
    parser.add_argument("models", nargs="+", metavar="MODEL=STATS")
    parser.add_argument("--windows", type=int, default=64, help="windows of 256 tokens to judge by [64]")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    results = record.Results(options.out, record.host("bench/advise.py") | {"windows": options.windows})

    def add(name, figures):
        results.lines[name] = {"name": name, **figures}
        print(record.rounded(results.lines[name]), flush=True)

    for given in options.models:
        source, stats = map(pathlib.Path, given.split("=", 1))
        with tempfile.TemporaryDirectory() as folder:
            model = Model(options.build / "nibble", source, stats, pathlib.Path(folder), options.windows)
            found = sensitivities(stats, model.model)
            for layer, figures in found.items():
                add(f"{source.name}/sensitivity/{layer}", figures)
            inner = [figures for layer, figures in found.items() if layer != "lm_head.weight"]
            add(f"{source.name}/spread", {
                "equal": spread([each["sensitivity"] for each in inner]),
                "proportional": spread([each["sensitivity"] / each["weights"] for each in inner])})  # fmt: skip
            for uniform in UNIFORM:
                for how, figures in choices(model, uniform):
                    add(f"{source.name}/{uniform}/{how}", figures)
        results.save()


if __name__ == "__main__":
    main()
