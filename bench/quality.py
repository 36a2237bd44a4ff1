#!/usr/bin/env python3
"""How much less a model loses if its absmax is searched, calibrated or compensated: converts models as a user would,
and judges the directories with nibble.evaluate.

    build/peers/bin/python bench/quality.py

Needs build/release with NIBBLE_PYTHON_WITH_TORCH and python/peers.sh --loading. The models are all-MiniLM-L6-v2,
SmolLM2-135M-Instruct (bench/smollm2.py) and three Llamas of examples/train_llama.py, which differ in the seed. The
language models are calibrated on pages of Perl's manual, which the Llamas were trained on, and MiniLM on sentences of
Python's documentation. Each is judged on what it was calibrated on, on other text of that kind, and on two other kinds:
the other one of the two documentations, and licences. MiniLM is calibrated on other amounts and kinds of text, too, and
compensated with a search.

Writes bench/results/quality.jsonl; bench/table.py --write docs/evaluate.md makes tables of it. What is in --folder
already, models and statistics, is not made again, and lines of models that are not named stay in the results.
"""

import argparse
import hashlib
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import time
from pydoc_data import topics

import record

sys.path[:0] = [str(record.ROOT / "examples"), str(record.ROOT / "python")]
import llama
import minilm
import smollm2
import torch
import train_llama
import transformers
from nibble import backend, model_error
from nibble.calibrate.__main__ import main as calibrate
from nibble.evaluate import Progress, parse

SEEDS = 3
MODELS = [*(f"llama-seed{seed}" for seed in range(SEEDS)), "smollm2", "minilm"]
FORMATS = {"nf4": "nf4", "nf4, block size 128": "nf4:block-size=128", "int8": "int8"}
WAYS = {  # what `convert` is told beside --to
    "max": "",
    "search-positive": "--absmax search-positive",
    "search": "--absmax search",
    "search, calibrated": "--absmax search --calibration {stats}",
    "compensated": "--calibration {stats} --compensate",
    "compensated, search": "--absmax search --calibration {stats} --compensate",
}
BEST = "compensated, search"
LICENCES = ("Apache-2.0", "Artistic", "GFDL-1.3", "GPL-3", "LGPL-2.1", "MPL-2.0")
PIECE = 768  # characters of a text for a language model, about a window
PIECES, CALIBRATED_SENTENCES = 256, 1024  # to calibrate language models and MiniLM on
WINDOWS, SENTENCES = 64, 300  # to judge by
LONGER, LONGER_WINDOWS = "same kind, longer", 256  # perplexities need more tokens than the KLD
REMEMBERED = 4 << 30  # bytes of outputs of the original model that are kept
SMOLLM2_WAYS = [("nf4", way) for way in WAYS]  # the largest model: fewer formats
LONGER_WAYS = [("nf4", way) for way in ("max", "compensated", BEST)]


def spread(text, pieces):
    """So many pieces of a text, at equal distances, one after the other."""
    return "".join(text[begin : begin + PIECE] for begin in range(0, len(text), max(PIECE, len(text) // pieces)))


def sentences(text):
    """Different sentences of 40 to 300 characters, in an order by chance."""
    found = re.split(r"(?<=[.!?]) ", re.sub(r"\s+", " ", text))
    found = sorted({sentence for sentence in found if 40 <= len(sentence) <= 300})
    random.Random(0).shuffle(found)
    return found


def lines_of(sentences):
    return "\n".join(sorted(sentences, key=len))  # less padding


def manuals():
    """(pages of Perl's manual that the Llamas are trained on, those held out, Python's documentation)"""
    trained, held_out = ("".join(pages) for pages in train_llama.pages())
    return trained, held_out, " ".join(topics.topics[name] for name in sorted(topics.topics))


def texts(model):
    """{kind: text} to judge by"""
    trained, held_out, python = manuals()
    licences = "\n".join(pathlib.Path("/usr/share/common-licenses", name).read_text() for name in LICENCES)
    if model == "minilm":
        same = sentences(python)
        made = {"same kind": same, "licences": sentences(licences), "calibrated on": same[SENTENCES:],
                "other manual": sentences(held_out)}  # fmt: skip
        return {kind: lines_of(lines[:SENTENCES]) for kind, lines in made.items()}
    made = {"same kind": (held_out, WINDOWS), "licences": (licences, WINDOWS), "calibrated on": (trained, PIECES),
            "other manual": (python, WINDOWS), LONGER: (held_out, LONGER_WINDOWS)}  # fmt: skip
    return {kind: spread(text, pieces) for kind, (text, pieces) in made.items()}


def calibration_texts(model):
    """{name: text}, first the one that all ways are calibrated on"""
    trained, _, python = manuals()
    if model != "minilm":
        return {"calibration": spread(trained, PIECES)}
    same, n = sentences(python)[SENTENCES:], CALIBRATED_SENTENCES
    made = {"calibration": same[:n], "256 of them": same[:256],
            "512 of them, and 512 of Perl's manual": same[:512] + sentences(trained)[:512]}  # fmt: skip
    return {name: lines_of(lines) for name, lines in made.items()}


def original(model, folder):
    """The directory of the model, made unless it is there."""
    source = folder / model
    if model == "minilm":
        source = minilm.model_directory()
    elif model == "smollm2":
        if not source.is_dir():
            smollm2.make(source)
    elif not (source / "training.json").is_file():
        subprocess.run([sys.executable, train_llama.__file__, "--out", source, "--mlp", "768",
                        "--seed", model.removeprefix("llama-seed")], check=True)  # fmt: skip
    return source


def calibrated(source, text, stats):
    """The directory of the statistics, made unless it has those of this text."""
    manifest = stats / "calibration.json"
    sha256 = hashlib.sha256(text.read_bytes()).hexdigest()
    if not manifest.is_file() or json.loads(manifest.read_text())["text"]["sha256"] != sha256:
        calibrate([str(source), "--text", str(text), "--out", str(stats), "--second-moments", "--batch", "8",
                   "--progress", "none", "--overwrite"])  # fmt: skip
    return stats


def written(text_of, folder):
    """{name: file}"""
    files = {name: folder / f"{name}.txt" for name in text_of}
    for name, file in files.items():
        file.write_text(text_of[name], encoding="utf-8")
    return files


def quantized(source, stats, folder, nibble):
    """{(format, way): directory}"""
    made = {}
    for format, target in FORMATS.items():
        for way, options in WAYS.items():
            if format == "int8" and way not in ("max", "search", "compensated"):
                continue
            if source.name == "smollm2" and (format, way) not in SMOLLM2_WAYS:
                continue
            out = made[format, way] = folder / f"{len(made)}"
            words = ["--to", target, *(word.format(stats=stats) for word in options.split())]
            llama.convert(nibble, source, out, words)
    return made


def bitsandbytes(source, folder):
    """{(format, way): directory}, as transformers and bitsandbytes make them."""
    made = {}
    for format in ("nf4", "int8"):
        out = made[format, "bitsandbytes"] = folder / f"bitsandbytes-{format}"
        llama.quantize_by_peer(source, out, llama.FORMATS[format][1], transformers.AutoModel)
    return made


class Remembered:
    """The original model. nibble.evaluate runs it once for each test; here, it gives the same outputs again, as far as
    they fit into REMEMBERED bytes."""

    def __init__(self, model):
        self.model, self.outputs, self.bytes = model, {}, 0

    def __call__(self, input_ids, **options):
        key = input_ids.numpy().tobytes()
        if key in self.outputs:
            return self.outputs[key]
        output = self.model(input_ids, **options)
        size = sum(value.nbytes for value in output.values() if torch.is_tensor(value))
        if self.bytes + size <= REMEMBERED:
            self.outputs[key] = output
            self.bytes += size
        return output


def evaluated(source, tests, text, windows):
    """(what was measured on, results one after the other), as nibble.evaluate reports them."""
    words = [source, *tests, "--text", text, "--windows", windows, "--batch", 8, "--layer-batches", 0,
             "--device", "cpu"]  # fmt: skip
    options = parse([str(word) for word in words])
    comparison = model_error.Comparison(options.reference, options.text, options, Progress())
    comparison._model = Remembered(model_error.load(source, comparison.kind, options.device, options.dtype))
    return comparison.facts(), (comparison.run(test) for test in options.tests)


def figures(result):
    if "cosine" not in result:
        return {name: result[name] for name in ("perplexity", "ln_ratio", "kld", "same_top", "tokens")}
    cosine = result["cosine"]
    return {"one_minus_cosine": {"mean": 1 - cosine["mean"], "error": cosine["error"], "median": 1 - cosine["median"],
                                 "worst": 1 - cosine["min"]}}  # fmt: skip


def tokens_of(stats):
    """What the statistics were made from."""
    text = json.loads((stats / "calibration.json").read_text())["text"]
    return {key: text[key] for key in ("sequences", "tokens")}


def judge(model, options):
    folder = options.folder / f"{model}-quantized"
    folder.mkdir(parents=True, exist_ok=True)
    files = written(texts(model), folder)
    source = original(model, options.folder)
    stats = {name: calibrated(source, file, options.folder / f"{model}-{name}")
             for name, file in written(calibration_texts(model), folder).items()}  # fmt: skip
    first, *others = stats
    made = quantized(source, stats[first], folder, options.build / "nibble")
    if model == "minilm":
        made |= bitsandbytes(source, folder)
    for name in others:
        out = made["nf4", f"{BEST}/{name}"] = folder / name
        words = ["--to", "nf4", *(word.format(stats=stats[name]) for word in WAYS[BEST].split())]
        llama.convert(options.build / "nibble", source, out, words)
    lines = {model: {"name": model, "date": time.strftime("%Y-%m-%d"), "calibrated_on": tokens_of(stats[first])}}
    if others:
        lines[model]["others_calibrated_on"] = {name: tokens_of(stats[name]) for name in others}
    if model.startswith("llama"):
        lines[model]["training"] = json.loads((source / "training.json").read_text())
    if model == "smollm2":
        backend.enable()  # nibble's products
    try:
        evaluate_kinds(model, source, made, files, lines, options)
    finally:
        backend.disable()  # the next model may be quantized by bitsandbytes itself
    save(lines, options.out, whole=True)


def evaluate_kinds(model, source, made, files, lines, options):
    """Adds the figures of each kind of text to the lines, and saves them."""
    for kind, file in files.items():
        windows = SENTENCES if model == "minilm" else LONGER_WINDOWS if kind == LONGER else WINDOWS
        tests = {which: made[which] for which in (LONGER_WAYS if kind == LONGER else made)}
        if kind == "calibrated on":  # by what is the first calibration
            tests = {(format, way): out for (format, way), out in tests.items() if "/" not in way}
        facts, results = evaluated(source, tests.values(), file, windows)
        lines[model][kind] = {key: facts[key] for key in ("windows", "context", "lines") if key in facts}
        for (format, way), result in zip(tests, results):
            line = {"name": f"{model}/{kind}/{format}/{way}", **figures(result)}
            lines[line["name"]] = line
            print(record.rounded(line), flush=True)
        save(lines, options.out)


def save(lines, path, whole=False):
    """Replaces the lines of these names. If they are the `whole` of their models, these models' other lines go."""
    results = record.Results(path, record.host("bench/quality.py") | {"peers": record.peer_versions(sys.executable)})
    models = {name.split("/")[0] for name in lines} if whole else {}
    before = record.load(path)[1].items()
    kept = {name: line for name, line in before if name in lines or name.split("/")[0] not in models}
    results.lines = kept | lines
    results.save()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    record.add_options(parser, "quality")
    parser.add_argument("--folder", type=pathlib.Path, default=record.ROOT / "build" / "quality",
                        help="for all that is made")  # fmt: skip
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--threads", type=int, help="of torch [all processors]")
    options = parser.parse_args()
    os.environ.setdefault("NIBBLE_TORCH_LIBRARY", str(options.build / "python" / "torch" / "libnibble_torch.so"))
    if options.threads:
        torch.set_num_threads(options.threads)
    model_error.quiet()
    for model in options.models:
        start = time.perf_counter()
        judge(model, options)
        print(f"{model}: {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
