"""Measures the error of each format on the model of train_llama.py and on all-MiniLM-L6-v2, by nibble and bitsandbytes.

    llama.py --nibble build/release/nibble --model build/llama/fp32 --out build/llama

Writes the figures to bench/results/evaluate.jsonl and prints a table. Exits with 1 if a figure of nibble's result
differs from that of bitsandbytes' own quantization by more than the standard error.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / folder) for folder in ("python", "bench", "examples")]

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import minilm  # noqa: E402
import record  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from nibble.evaluate import Progress, evaluate, parse  # noqa: E402

FOUR_BIT = {"load_in_4bit": True, "bnb_4bit_use_double_quant": True, "bnb_4bit_compute_dtype": torch.float32}
FORMATS = {  # name: (options of nibble, how transformers is told)
    "fp16": (["--to", "fp16"], None),
    "int8": (["--to", "int8"], {"load_in_8bit": True}),
    "nf4": (["--to", "nf4"], FOUR_BIT | {"bnb_4bit_quant_type": "nf4"}),
    "nf4, no double quantization": (["--to", "nf4", "--no-double-quant"],
                                    FOUR_BIT | {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": False}),
    "fp4": (["--to", "fp4"], FOUR_BIT | {"bnb_4bit_quant_type": "fp4"}),
}  # fmt: skip
COMPARED = {"language model": ("perplexity", "kld", "same_top", "p_diff_rms"), "encoder": ("cosine",)}


def convert(nibble, source, out, options):
    command = [nibble.resolve(), "convert", source, out, *options, "--overwrite", "--progress", "none"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def quantize_by_peer(source, out, settings, auto):
    """transformers loads and quantizes with bitsandbytes, or casts, and saves; a tokenizer it leaves to others."""
    if settings is None:
        model = auto.from_pretrained(source, dtype=torch.float16)
    else:
        model = auto.from_pretrained(source, quantization_config=transformers.BitsAndBytesConfig(**settings))
    shutil.rmtree(out, ignore_errors=True)
    model.save_pretrained(out)


def directories(options, source, name, auto):
    """{(format, by whom): directory}, each made anew."""
    made = {}
    for number, (to, (arguments, settings)) in enumerate(FORMATS.items()):
        ours, theirs = (options.out / f"{name}-{by}-{number}" for by in ("nibble", "peer"))
        convert(options.nibble, source, ours, arguments)
        quantize_by_peer(source, theirs, settings, auto)
        made[to, "nibble"], made[to, "peer"] = ours, theirs
    return made


def measure(source, tests, text, *options):
    """The report of nibble.evaluate on all directories, with format and maker instead of paths."""
    progress = Progress()
    paths = [str(path) for path in tests.values()]
    report = evaluate(parse([str(source), *paths, "--text", str(text), *map(str, options)]), progress)
    progress.clear()
    for (to, by), result in zip(tests, report["results"]):
        del result["test"]
        result |= {"format": to, "by": by}
    return report


def lines_of(name, report):
    """The report as lines of a results file: one on what was measured, one per format and maker."""
    results = report.pop("results")
    facts = {key: value for key, value in report.items() if key not in ("schema_version", "reference", "text")}
    return [{"name": name, **facts}, *({"name": f"{name}/{r['format']}/{r['by']}", **r} for r in results)]


def differences(name, report):
    """What nibble's and the peer's results don't agree on, in words."""
    found = {(result["format"], result["by"]): result for result in report["results"]}
    wrong = []
    for to in FORMATS:
        ours, theirs = found[to, "nibble"], found[to, "peer"]
        for figure in COMPARED[report["kind"]]:
            a, b = ours[figure], theirs[figure]
            if abs(a["mean"] - b["mean"]) > max(a["error"], b["error"]):
                wrong.append(f"{name}, {to}: {figure} is {a['mean']:.6g} ± {a['error']:.2g} by nibble and "
                             f"{b['mean']:.6g} ± {b['error']:.2g} by bitsandbytes")  # fmt: skip
    return wrong


def machine():
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return record.host("examples/llama.sh") | {"gpu": gpu, "peers": record.peer_versions(sys.executable)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nibble", required=True, type=pathlib.Path, help="the program")
    parser.add_argument("--model", required=True, type=pathlib.Path, help="what train_llama.py wrote")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="where the quantized directories go")
    parser.add_argument("--results", type=pathlib.Path, default=record.RESULTS / "evaluate.jsonl")
    parser.add_argument("--windows", type=int, default=128, help="windows of text for the Llama [128]")
    options = parser.parse_args()

    options.out.mkdir(parents=True, exist_ok=True)
    text, recipe = options.model / "test.txt", json.loads((options.model / "training.json").read_text())
    start = time.perf_counter()
    tests = {("fp32", "nibble"): options.model}
    tests |= directories(options, options.model, "llama", transformers.AutoModelForCausalLM)
    llama = measure(options.model, tests, text, "--windows", options.windows, "--batch", 4)
    tests = directories(options, minilm.model_directory(), "minilm", transformers.AutoModel)
    encoder = measure(minilm.model_directory(), tests, text, "--windows", 300, "--batch", 10)
    wrong = differences("llama", llama) + differences("minilm", encoder)

    rows = [machine() | {"training": recipe, "seconds": time.perf_counter() - start},
            *lines_of("llama", llama), *lines_of("minilm", encoder)]  # fmt: skip
    # Not rounded like other results: what matters in a cosine is its distance from 1.
    options.results.write_text("".join(json.dumps(row) + "\n" for row in rows))
    print(f"{len(rows) - 1} lines in {options.results}, {time.perf_counter() - start:.0f} s")
    for line in wrong:
        print(f"error: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
