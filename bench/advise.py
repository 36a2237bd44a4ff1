#!/usr/bin/env python3
"""What advice gains at the same size, with and without statistics of the inputs, on small language models.

    build/peers/bin/python bench/advise.py MODEL=STATS...

MODEL is a directory that examples/train_llama.py wrote (its test.txt is what the model is judged by), and STATS the
statistics that `python -m nibble.calibrate MODEL` wrote. The model is cast to bf16 first, so that what advice leaves as
it is takes 16 bits. For each size, which is that of a uniform NF4, prints and writes to bench/results/advise.jsonl the
mean KL divergence (and its standard error over windows) of the next-token distributions from the bf16 model's:

    uniform         NF4 with this block size for all linear layers
    plain           the best that transformers can load within the same bytes, by the errors of the weights
    calibrated      the same by the errors of the layers' outputs
    any, plain and any, calibrated: with --allow-nibble-only, where every tensor may have any codec
    coefficients    NF4 with the layers skipped that advice would skip if it knew their coefficients (below), which are
                    measured on other windows of the text; nibble cannot do that by itself
    equal           the same if all coefficients were equal

The coefficient of a layer is how much the divergence grows with the relative squared error of its weights, or of its
output, by noise on the weights. The spread says how far the coefficients of all layers but the output layer are from
being equal, and from being proportional to the number of their weights: the standard deviation of the logarithms, as a
factor.
"""

import argparse
import json
import pathlib
import re
import statistics
import subprocess
import tempfile

import record
import safetensors
import torch
import transformers

UNIFORM = ("nf4:block-size=64,double-quant=no", "nf4:block-size=32,double-quant=no")
BLOCKS = [f"nf4:block-size={size}" for size in (32, 64, 128, 256)] + ["int8"]
CONTEXT = 256
OTHERS = 8  # windows to measure coefficients on
NOISE = 1e-2  # relative squared error: about that of NF4


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
        self.nibble, self.stats, self.folder = nibble, stats, folder
        self.bf16 = folder / "bf16"
        self.run("convert", source, self.bf16, "--to", "bf16")
        everything = windows_of(source, self.bf16)
        self.windows, self.others = everything[:windows], everything[-OTHERS:]
        self.model = load(self.bf16)
        self.reference = log_probabilities(self.model, self.windows)
        self.coefficients = dict(coefficients(self))

    def run(self, *command, overwrite=True):
        done = subprocess.run([self.nibble, *map(str, command), "--json", "--progress", "none",
                               *(["--overwrite"] if overwrite else [])],
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
        for how, calibration in (("plain", []), ("calibrated", ["--calibration", model.stats])):
            yield name + how, model.judge(*size, *options, *calibration)[1]
    known = {layer: figures["by_weights"] for layer, figures in model.coefficients.items()}
    for how, coefficient in (("coefficients", known), ("equal", dict.fromkeys(known, 1))):
        yield how, model.judge("--to", "nf4", *skips(model, report["stored_bytes"], coefficient))[1]


def skips(model, size, coefficient):
    """The layers to leave in bf16: those first that cost the most for each byte, as long as they fit."""
    planned = model.run("convert", model.bf16, model.folder / "planned", "--to", "nf4", "--dry-run")
    left, saved = size - planned["stored_bytes"], {}
    measured = model.run("measure", model.bf16, "--to", "nf4", overwrite=False)
    errors = measured["tests"][0]["tensors"]
    for tensor, error in zip(measured["reference"]["tensors"], errors, strict=True):
        layer = tensor["name"].removesuffix(".weight")
        if error["outcome"] == "quantized":
            more = tensor["bytes"] - error["bytes"]
            saved[layer] = (coefficient[layer] * error["rel_rmse"] ** 2 / more, more)
    for layer, (_, more) in sorted(saved.items(), key=lambda item: -item[1][0]):
        if more <= left:
            left -= more
            yield from ("--skip", re.escape(f"{layer}.weight"))


def mean_squares(stats):
    """{weight: those of its input}"""
    manifest = json.loads((stats / "calibration.json").read_text())
    found = {}
    for weight, [name] in manifest["weights"].items():
        with safetensors.safe_open(stats / manifest["inputs"][name]["file"], "pt") as file:
            found[weight] = file.get_tensor(f"{name}.mean_square")
    return found


def coefficients(model):
    """Of each linear layer: what noise on its weights adds to the divergence, over relative squared errors."""
    squares = mean_squares(model.stats)
    reference = log_probabilities(model.model, model.others)
    generator = torch.Generator().manual_seed(0)
    for name, layer in model.model.named_modules():
        if f"{name}.weight" not in squares:
            continue
        weight, m = layer.weight.data, squares[f"{name}.weight"]
        noise = torch.randn(weight.shape, generator=generator)
        noise *= (NOISE * weight.square().sum() / noise.square().sum()).sqrt()
        output = ((m * noise.square()).sum() / (m * weight.square()).sum()).item()
        layer.weight.data = weight + noise
        added = statistics.mean(divergence(reference, model.model, model.others))
        layer.weight.data = weight
        yield name, {"weights": weight.numel(), "by_weights": added / NOISE, "by_output": added / output}


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
            for layer, figures in model.coefficients.items():
                add(f"{source.name}/coefficient/{layer}", figures)
            for what in ("by_weights", "by_output"):
                each = [(figures[what], figures["weights"])
                        for layer, figures in model.coefficients.items() if layer != "lm_head"]  # fmt: skip
                add(f"{source.name}/spread {what}", {"equal": spread([coefficient for coefficient, _ in each]),
                    "proportional": spread([coefficient / weights for coefficient, weights in each])})  # fmt: skip
            for uniform in UNIFORM:
                for how, figures in choices(model, uniform):
                    add(f"{source.name}/{uniform}/{how}", figures)
        results.save()


if __name__ == "__main__":
    main()
