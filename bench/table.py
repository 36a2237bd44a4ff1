#!/usr/bin/env python3
"""Tables from bench/results/*.jsonl: no figure of those in docs/*.md is typed by hand.

    bench/table.py                  prints the targets and what was measured
    bench/table.py --write FILE     fills in what stands between <!-- table: NAME --> and <!-- end -->
    bench/table.py --check FILE     fails if that would change the file

One file, because a table is a few lines over the records that they all share, and the targets are computed from the
same figures.
"""

import argparse
import dataclasses
import math
import pathlib
import re
import statistics
import sys
from collections.abc import Callable

import record


@dataclasses.dataclass
class Target:
    """A figure that is promised: how it follows from the medians, and the limit it keeps."""

    what: str
    source: str  # bench/results/<source>.jsonl
    value: Callable  # of {name: line}; a KeyError is a dash: not measured
    limit: float | None  # None: for context
    unit: str = "x"
    at_most: bool = False

    def met(self, value):
        return self.limit is None or (value <= self.limit if self.at_most else value >= self.limit)


def text(value, unit):
    if unit == "%":
        return f"{value:.1%}" if abs(value) < 0.1 else f"{value:.0%}"
    if unit in ("s", "ms"):
        return f"{value * (1000 if unit == 'ms' else 1):.3g} {unit}"
    return f"{value:.1f} {unit}" if value < 20 else f"{value:.0f} {unit}"


def of(name):
    return lambda m: m[name]["median"]


def ratio(slow, fast):
    return lambda m: of(slow)(m) / of(fast)(m)


def stage_share(case):
    """The largest stage's time alone in the time of the whole: 100 % if everything else is hidden behind it."""
    dtype = case.split("/")[1]
    stages = [of(name) for name in (f"read/{dtype}", f"encode/{case}", f"write/{case}")]
    return lambda m: max(stage(m) for stage in stages) / of(f"nibble/{case}")(m)


def bound_share(case):
    """What binds, alone, in the time of the whole: the disk, or the processors, which reading and encoding share. More
    than 100 % where the whole is faster: there a chunk is encoded while it is in cache, alone it comes from memory."""
    read, encode, write = (of(name) for name in (f"read/{case.split('/')[1]}", f"encode/{case}", f"write/{case}"))
    return lambda m: max(read(m) + encode(m), write(m)) / of(f"nibble/{case}")(m)


def unevenness(what):
    """By how much the time per byte of the slowest size exceeds that of the fastest."""

    def value(m):
        # Of the input's bytes: outputs are in proportion.
        per_byte = [of(f"flat/{what}/{size}GB")(m) / m[f"flat/convert/{size}GB"]["bytes"] for size in (1, 2, 4, 8)]
        return max(per_byte) / min(per_byte) - 1

    return value


TARGETS = [
    Target("NF4, double quantization, against cp + fsync: bf16", "convert", ratio("cp/bf16", "nibble/nf4/bf16"), 2.2),
    Target("the same: fp32", "convert", ratio("cp/fp32", "nibble/nf4/fp32"), 4.5),
    Target("the same, embeddings and output layer left alone: bf16", "convert",
           ratio("cp/bf16", "nibble/nf4-without-embeddings/bf16"), None),
    Target("the same, embeddings and output layer left alone: fp32", "convert",
           ratio("cp/fp32", "nibble/nf4-without-embeddings/fp32"), None),
    Target("the same, every matrix, without the error report: bf16", "convert",
           ratio("cp/bf16", "nibble/nf4-without-report/bf16"), None),
    Target("the same: fp32", "convert", ratio("cp/fp32", "nibble/nf4-without-report/fp32"), None),
    Target("int8 from bf16 against cp + fsync", "convert", ratio("cp/bf16", "nibble/int8/bf16"), 1.7),
    Target("fp16 from fp32 against cp + fsync", "convert", ratio("cp/fp32", "nibble/fp16/fp32"), 2.3),
    *(Target(f"largest stage alone, share of the whole: {case}", "convert", stage_share(case), 0.8, "%")
      for case in ("nf4/bf16", "nf4/fp32", "int8/bf16", "fp16/fp32")),
    *(Target(f"the disk alone, or the processors (read, then encode), share of the whole: {case}", "convert",
             bound_share(case), None, "%")
      for case in ("nf4/bf16", "nf4/fp32", "int8/bf16", "fp16/fp32")),
    Target("NF4 encode in memory, share of read bandwidth: fp32", "codecs",
           ratio("encode/nf4/float32/in_memory", "read/in_memory"), 0.5, "%"),
    Target("the same: bf16", "codecs", ratio("encode/nf4/bfloat16/in_memory", "read/in_memory"), 0.4, "%"),
    Target("NF4 encode in cache, fp32", "codecs", of("encode/nf4/float32/in_cache"), 15, "GB/s"),
    Target("the same, share of the copy in cache (either will do)", "codecs",
           ratio("encode/nf4/float32/in_cache", "memcpy/in_cache"), 0.3, "%"),
    Target("NF4 encode against bitsandbytes: fp32", "peers",
           ratio("nibble/quantize/nf4/float32", "peer/quantize/nf4/float32"), 80),
    Target("the same: bf16", "peers", ratio("nibble/quantize/nf4/bfloat16", "peer/quantize/nf4/bfloat16"), 110),
    Target("dequantize NF4 to bf16 against bitsandbytes", "peers",
           ratio("nibble/decode/nf4/bfloat16", "peer/decode/nf4/bfloat16"), 4),
    Target("double quantization of absmax against bitsandbytes", "peers",
           ratio("nibble/nested/encode", "peer/nested/encode"), 5),
    Target("conversion to NF4 against a bitsandbytes script: bf16", "convert",
           ratio("peer/nf4/bf16", "nibble/nf4/bf16"), 50),
    Target("the same: fp32", "convert", ratio("peer/nf4/fp32", "nibble/nf4/fp32"), 35),
    Target("against llama-quantize to Q4_0: bf16", "convert", ratio("llama-quantize/q4_0", "nibble/nf4/bf16"), 5),
    Target("the same: fp32", "convert", ratio("llama-quantize/q4_0/fp32", "nibble/nf4/fp32"), None),
    Target("time per byte, 1 to 8 GB, slowest over fastest", "sizes", unevenness("convert"), 0.2, "%", at_most=True),
    Target("the same, writing alone", "sizes", unevenness("write"), None, "%"),
    Target("start-up: --version", "sizes", of("start/version"), 0.02, "ms", at_most=True),
    Target("start-up: a conversion of one tensor on tmpfs", "sizes", of("start/convert"), 0.02, "ms",
           at_most=True),
    Target("processor time in stages that one thread does", "profile", of("all that one thread does"), 0.02,
           "%", at_most=True),
    Target("processor time in locks", "profile", of("locks"), 0.02, "%", at_most=True),
    Target("processor time to wake the threads that wait for the disk", "profile", of("threads for the disk"), None,
           "%"),
    Target("inspect of 500,000 tensors", "sizes", of("start/inspect"), 1.5, "s", at_most=True),
]  # fmt: skip


def all_results():
    return {source: record.load(record.RESULTS / f"{source}.jsonl")[1] for source in {t.source for t in TARGETS}}


def target_rows(measured):
    """[what, promised, measured, met] of all targets whose source is there. `measured`: {source: {name: line}}."""
    rows = []
    for target in TARGETS:
        if target.source not in measured:
            continue
        promised = "" if target.limit is None else text(target.limit, target.unit)
        try:
            value = target.value(measured[target.source])
        except KeyError:
            rows.append([target.what, promised, "–", ""])
            continue
        verdict = "" if target.limit is None else "yes" if target.met(value) else "no"
        rows.append([target.what, promised, text(value, target.unit), verdict])
    return rows


def print_rows(head, rows):
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    for row in [head, *rows]:
        print("  ".join(f"{cell:<{width}}" if i == 0 else f"{cell:>{width}}"
                        for i, (cell, width) in enumerate(zip(row, widths))).rstrip())  # fmt: skip


TARGET_HEAD = ["", "target", "measured", "met"]


def print_targets(measured):
    print_rows(TARGET_HEAD, target_rows(measured))


def markdown(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def load_words(run):
    """That the machine was busy, if it was: the program that is measured keeps its cores busy itself."""
    busy = run.get("load_average", 0) > run["cores"] + 1
    return [f"with other work beside it (load {run['load_average']:.0f})"] if busy else []


def machine_text(source):
    run, _ = record.load(record.RESULTS / f"{source}.jsonl")
    if not run:
        return "Not measured yet.\n"
    words = [f"{run['cores']} cores of {run['cpu']} ({run['simd']}), {run['memory_gib']} GiB, Linux {run['kernel']}"]
    if "disk_write_gb_s" in run:
        words.append(f"{run['file_system']}, disk {run['disk_read_gb_s']:.1f} GB/s read and "
                     f"{run['disk_write_gb_s']:.1f} GB/s written")  # fmt: skip
    words += [*load_words(run), run["compiler"], run["flags"]]
    words += [f"{name} {version}" for name, version in run.get("peers", {}).items()]
    return f"Measured {run['date']}: " + "; ".join(words) + ".\n"


def codecs_table(results="codecs"):
    _, lines = record.load(record.RESULTS / f"{results}.jsonl")
    rows = [
        [f"`{name}`", *(f"{lines[f'{name}/{size}'][field]:{form}}" for size in ("in_cache", "in_memory")
                        for field, form in (("median", ".2f"), ("share_of_memcpy", ".0%"), ("share_of_read", ".0%")))]
        for name in sorted({name.rsplit("/", 1)[0] for name in lines})
    ]  # fmt: skip
    head = ["", "in cache, GB/s", "of memcpy", "of read", "in memory, GB/s", "of memcpy", "of read"]
    return markdown(head, rows) if rows else "Not measured yet.\n"


def times_table(*sources):
    lines = {}
    for source in sources:
        lines |= record.load(record.RESULTS / f"{source}.jsonl")[1]
    rows = [
        [f"`{name}`", f"{line['median']:.3g}", f"{line['bytes'] / line['median'] / 1e9:.2f}" if "bytes" in line else "",
         f"{line['user']:.2f} + {line['system']:.2f}" if "user" in line else "",
         f"{line['peak_bytes'] / 1e6:.0f}" if "peak_bytes" in line else "", str(len(line["samples"]))]
        for name, line in lines.items()
    ]  # fmt: skip
    head = ["", "seconds", "GB/s of input", "user + system, s", "peak MB", "samples"]
    return markdown(head, rows) if rows else "Not measured yet.\n"


def profile_table():
    _, lines = record.load(record.RESULTS / "profile.jsonl")
    rows = [[name, f"{line['median']:.1%}"] for name, line in lines.items()]
    return markdown(["", "share of processor time"], rows) if rows else "Not measured yet.\n"


def peers_table():
    _, lines = record.load(record.RESULTS / "peers.jsonl")
    rows = []
    for name in [name.removeprefix("nibble/") for name in lines if name.startswith("nibble/")]:
        ours, theirs = (lines[f"{side}/{name}"]["median"] for side in ("nibble", "peer"))
        rows.append([f"`{name}`", f"{ours:.2f}", f"{theirs:.3f}", text(ours / theirs, "x")])
    return markdown(["", "nibble, GB/s", "peer, GB/s", "ratio"], rows) if rows else "Not measured yet.\n"


def predictions():
    """({(case, disk): {threads: measurement}}, the same for those that were measured, too)"""
    _, lines = record.load(record.RESULTS / "scaling.jsonl")
    by_case, checked = {}, {}
    for name, line in lines.items():
        if "bound" in line:
            case, disk, threads = name.rsplit("/", 2)
            by_case.setdefault((case, disk), {})[int(threads)] = line
            if "measured" in line:
                checked[case, int(threads)] = line
    return by_case, checked


def scaling_table():
    by_case, _ = predictions()
    rows = [[f"`{case}`, {disk}", *(f"{line['median']:.1f} {line['bound']}" for line in by_threads.values())]
            for (case, disk), by_threads in by_case.items()]  # fmt: skip
    if not rows:
        return "Not measured yet.\n"
    return markdown(["GB/s of input", *map(str, next(iter(by_case.values())))], rows)


def check_table():
    _, checked = predictions()
    rows = [[f"`{case}`", str(threads), f"{line['median']:.2f}", f"{line['measured']:.2f}", f"{line['error']:+.0%}"]
            for (case, threads), line in checked.items()]  # fmt: skip
    return markdown(["", "threads", "predicted, GB/s", "measured", "error"], rows) if rows else "Not measured yet.\n"


def targets_table():
    return markdown(TARGET_HEAD, target_rows(all_results()))


def plus_minus(figure, digits, factor=1.0):
    return f"{figure['mean'] * factor:z.{digits}f} ± {figure['error'] * factor:.{digits}f}"


def small(value):
    """Three significant digits of figures that reach over many orders of magnitude."""
    return f"{value:.3g}" if value == 0 or value >= 1e-3 else f"{value:.2e}"


def small_plus_minus(figure):
    return f"{small(figure['mean'])} ± {figure['error']:.1g}"


def maker(line):
    """Who made a quantized model: fp16 by the peer is a cast, which transformers does without bitsandbytes."""
    return "nibble" if line["by"] == "nibble" else "transformers" if line["format"] == "fp16" else "bitsandbytes"


def evaluated(model):
    _, lines = record.load(record.RESULTS / "evaluate.jsonl")
    return [line for name, line in lines.items() if name.startswith(f"{model}/")]


def perplexity_table():
    rows = [
        [line["format"], "" if line["format"] == "fp32" else maker(line), plus_minus(line["perplexity"], 2),
         plus_minus(line["ln_ratio"], 5), small_plus_minus(line["kld"]), small(line["kld"]["max"]),
         small(line["kld"]["p99.9"]), small(line["kld"]["median"]), plus_minus(line["same_top"], 2, 100),
         plus_minus(line["p_diff_rms"], 3, 100)]
        for line in evaluated("llama")
    ]  # fmt: skip
    head = ["", "by", "perplexity", "ln(PPL / PPL fp32)", "KLD, mean", "max", "99.9 %", "median", "same top, %",
            "RMS Δp, %"]  # fmt: skip
    return markdown(head, rows) if rows else "Not measured yet.\n"


def layers_table():
    """SQNR of each layer alone, of nibble's results."""
    lines = [line for line in evaluated("llama") if line["by"] == "nibble" and line["format"] != "fp32"]
    if not lines:
        return "Not measured yet.\n"
    rows = [[f"`{layer['name']}`", *("exact" if line["layers"][index]["own"]["sqnr_db"] is None else
                                     f"{line['layers'][index]['own']['sqnr_db']:.1f}" for line in lines)]
            for index, layer in enumerate(lines[0]["layers"])]  # fmt: skip
    return markdown(["SQNR, dB", *(line["format"] for line in lines)], rows)


def cosine_table():
    keys = ("mean", "median", "p1", "min")
    rows = [[line["format"], maker(line), *(small(max(0.0, 1 - line["cosine"][key])) for key in keys),
             f"{line['cosine']['error']:.1g}"] for line in evaluated("minilm")]  # fmt: skip
    head = ["1 - cosine", "by", "mean", "median", "worst 1 %", "worst", "standard error"]
    return markdown(head, rows) if rows else "Not measured yet.\n"


def evaluated_text():
    run, lines = record.load(record.RESULTS / "evaluate.jsonl")
    if not run:
        return "Not measured yet.\n"
    training, llama, minilm = run["training"], lines["llama"], lines["minilm"]
    tokens = training["steps"] * training["batch"] * llama["context"]
    return (f"Measured {run['date']}: {host_text(run)}. Llama of {training['weights'] / 1e6:.1f} M weights, "
            f"{training['layers']} layers, trained on {tokens / 1e6:.1f} M tokens of {training['text']} in "
            f"{training['seconds']} s; {llama['windows']} windows of {llama['context']} tokens of the pages held out. "
            f"MiniLM: their first {minilm['lines']} lines.\n")  # fmt: skip


KINDS = {"calibrated on": "text calibrated on", "same kind": "other text of the kind",
         "other manual": "the other manual", "licences": "licences"}  # fmt: skip
OTHERS = ["same kind", "other manual", "licences"]  # not calibrated on
LONGER = "same kind, longer"


def quality():
    """(the run, {name: line}, the Llamas, all "format/way" that they were converted to)"""
    run, lines = record.load(record.RESULTS / "quality.jsonl")
    llamas = [name for name in lines if re.fullmatch(r"llama-seed\d", name)]
    ways = [name.split("/", 2)[2] for name in lines if name.startswith("llama-seed0/same kind/")]
    return run, lines, llamas, ways


def over_seeds(figures, form, error_form):
    """The mean over the seeds ± that of the standard errors, and the least and the greatest seed's, in 10^-5."""
    means, errors = ([figure[key] * 1e5 for figure in figures] for key in ("mean", "error"))
    average, error = statistics.mean(means), statistics.mean(errors)
    return f"{average:{form}} ± {error:{error_form}} ({min(means):{form}} to {max(means):{form}})"


def quality_table(figure, forms, heads, summary):
    """A figure by kinds of text, and what summary(format, way) says of the kinds that were not calibrated on."""
    _, lines, llamas, ways = quality()
    rows = [[*way.split("/"), *(over_seeds([lines[f"{llama}/{kind}/{way}"][figure] for llama in llamas], *forms)
                                for kind in KINDS), *summary(*way.split("/"))] for way in ways]  # fmt: skip
    return markdown(["", "`convert`", *KINDS.values(), *heads], rows)


def kld_avoided(format, way):
    """1 - KLD / that of the largest magnitude at the same format: the mean, and the least and the greatest."""
    _, lines, llamas, _ = quality()
    klds = [[lines[f"{llama}/{kind}/{format}/{which}"]["kld"]["mean"] for which in (way, "max")]
            for llama in llamas for kind in OTHERS]  # fmt: skip
    shares = [1 - after / before for after, before in klds]
    return ["" if way == "max" else f"{statistics.mean(shares):.0%} ({min(shares):.0%} to {max(shares):.0%})"]


def magnitudes(format, way):
    """Root mean squares over the seeds and kinds, of the figure and of its standard error."""
    _, lines, llamas, _ = quality()
    figures = [lines[f"{llama}/{kind}/{format}/{way}"]["ln_ratio"] for llama in llamas for kind in OTHERS]
    return [f"{statistics.mean(figure[key] ** 2 for figure in figures) ** 0.5 * 1e5:.0f}" for key in ("mean", "error")]


def perplexity_avoided_table():
    """1 - the sum over the seeds over that of the largest magnitude at the same format, ± its standard error, for which
    the models count as independent. Where the latter sum is less than twice its standard error, there is no gap."""
    _, lines, llamas, ways = quality()
    kinds = [*OTHERS, LONGER]
    rows = []
    for format, way in (way.split("/") for way in ways if "compensated" in way and way.startswith("nf4")):
        row = [format, way]
        for kind in kinds:
            names = [[f"{llama}/{kind}/{format}/{which}" for llama in llamas] for which in (way, "max")]
            if names[0][0] not in lines:
                row.append("")
                continue
            figures = [[lines[name]["ln_ratio"] for name in group] for group in names]
            after, before = (sum(figure["mean"] for figure in group) for group in figures)
            errors = [math.hypot(*(figure["error"] for figure in group)) for group in figures]
            error = math.hypot(errors[0], after / before * errors[1]) / abs(before)
            row.append(f"{1 - after / before:.0%} ± {error:.0%}" if before >= 2 * errors[1] else "no gap")
        rows.append(row)
    return markdown(["", "`convert`", *(KINDS.get(kind, "the kind, more text") for kind in kinds)], rows)


def smollm2_table(figure):
    """A figure of SmolLM2 by kinds of text, and the part of that of the largest magnitude that is avoided on those that
    were not calibrated on."""
    _, lines, _, _ = quality()
    ways = [name.split("/")[2:] for name in lines if name.startswith("smollm2/same kind/")]
    rows = []
    for format, way in ways:
        after, before = ({kind: lines[f"smollm2/{kind}/{format}/{which}"][figure] for kind in KINDS}
                         for which in (way, "max"))  # fmt: skip
        left, all = (sum(values[kind]["mean"] for kind in OTHERS) for values in (after, before))
        rows.append([format, way, *(f"{value['mean']:.3f} ± {value['error']:.3f}" for value in after.values()),
                     "" if way == "max" else f"{1 - left / all:.0%}"])  # fmt: skip
    return markdown(["", "`convert`", *KINDS.values(), "avoided"], rows)


def quality_cosine_table():
    _, lines, _, _ = quality()
    rows = []
    for name in [name for name in lines if re.fullmatch(r"minilm/same kind/[^/]*/[^/]*", name)]:
        format, way = name.split("/")[2:]
        row = [format, way]
        for kind in KINDS:
            loss = lines[f"minilm/{kind}/{format}/{way}"]["one_minus_cosine"]
            row.append(f"{loss['mean']:.5f} ± {loss['error']:.5f} ({to_bitsandbytes(kind, format, way)})")
        rows.append(row)
    return markdown(["", "`convert`", *KINDS.values()], rows)


def to_bitsandbytes(kind, format, way):
    """The ratio of MiniLM's 1 - cosine to that of bitsandbytes' own quantization."""
    _, lines, _, _ = quality()
    peer = "nf4" if format.startswith("nf4") else format
    loss, theirs = (lines[f"minilm/{kind}/{which}"]["one_minus_cosine"]["mean"]
                    for which in (f"{format}/{way}", f"{peer}/bitsandbytes"))  # fmt: skip
    return f"{loss / theirs:.2f}"


def quality_calibrations_table():
    """to_bitsandbytes() of MiniLM, compensated with a search, after each calibration."""
    _, lines, _, _ = quality()
    way, facts = "compensated, search", lines["minilm"]
    calibrations = {way: (f"{facts['calibrated_on']['sequences']} sentences of Python's documentation, as above",
                          facts["calibrated_on"]["tokens"])}  # fmt: skip
    for name, calibrated_on in facts["others_calibrated_on"].items():
        calibrations[f"{way}/{name}"] = (name, calibrated_on["tokens"])
    rows = [[name, f"{tokens}", *(to_bitsandbytes(kind, "nf4", which) for kind in OTHERS)]
            for which, (name, tokens) in calibrations.items()]  # fmt: skip
    return markdown(["calibrated on", "tokens", *(KINDS[kind] for kind in OTHERS)], rows)


def quality_text():
    run, lines, llamas, _ = quality()
    trainings = [lines[llama]["training"] for llama in llamas]
    steps = ", ".join(f"{training['steps']} of seed {training['seed']}" for training in trainings)
    llama, training = lines[llamas[0]], trainings[0]
    dates = sorted({lines[name]["date"] for name in [*llamas, "smollm2", "minilm"]})
    measured = " to ".join(dict.fromkeys([dates[0], dates[-1]]))
    return (f"Measured {measured}: {host_text(run)}. Llamas of {training['weights'] / 1e6:.1f} M weights; steps of "
            f"training: {steps}; calibrated on {llama['calibrated_on']['tokens']} tokens, judged by "
            f"{llama['same kind']['windows']} windows of {llama['same kind']['context']} tokens of each kind. MiniLM: "
            f"calibrated on {lines['minilm']['calibrated_on']['tokens']} tokens in "
            f"{lines['minilm']['calibrated_on']['sequences']} sentences, judged by "
            f"{lines['minilm']['same kind']['lines']} of each kind.\n")  # fmt: skip


def minilm_table():
    run, lines = record.load(record.RESULTS / "minilm.jsonl")
    rows = []
    for name, line in lines.items():
        figures = [f"{line['bytes'] / 1e6:.1f}", f"{line['bytes_per_weight']:.3f}"]
        if "rmse" in line:
            figures += [f"{line['seconds']:.2f}", f"{line['rmse']:.2e}", f"{line['sqnr_db']:.1f}",
                        f"{line['cosine_mean']:.6f}", f"{line['cosine_min']:.6f}"]  # fmt: skip
        rows.append([MINILM_NAMES.get(name, name), *figures, *[""] * (7 - len(figures))])
    head = ["", "MB", "bytes per weight", "convert, s", "RMSE", "SQNR, dB", "cosine: mean", "least"]
    return markdown(head, rows) + f"\nMeasured {run['date']}: {host_text(run)}.\n"


MINILM_NAMES = {"nf4-embeddings-bf16": "nf4 `--embeddings bf16`"}


def host_text(run):
    words = [f"{run['cores']} cores of {run['cpu']}, {run['memory_gib']} GiB, Linux {run['kernel']}"]
    words += [run["gpu"]] if run.get("gpu") else []
    words += load_words(run)
    return "; ".join(words + [f"{name} {version}" for name, version in run["peers"].items()])


def measured_table():
    _, measured = record.load(record.RESULTS / "measure.jsonl")
    rows = [[target.what, text(target.limit, target.unit), text(value, target.unit),
             "yes" if target.met(value) else "no"]
            for target in MEASURE_TARGETS if (value := target.value(measured)) is not None]  # fmt: skip
    return markdown(TARGET_HEAD, rows)


def error_report_table():
    runs = [record.load(record.RESULTS / f"{name}.jsonl") for name in ("error_report", "error_report_memory")]
    results = [lines for _, lines in runs]
    rows = []
    for name, what in REPORTED.items():
        ratios = [record.report_ratios(lines, f"convert/{name}") for lines in results]
        rows.append([what, *(text(ratio - 1, "%") for pair in ratios for ratio in pair)])
    head = ["the error report adds to", "from disk to disk: time", "processor time", "in memory: time", "processor time"]
    run = runs[0][0]
    return markdown(head, rows) + f"\nMeasured {run['date']}: {run['cores']} cores of {run['cpu']} ({run['simd']}).\n"


REPORTED = {
    "nf4": "NF4",
    "nf4/no-double-quant": "NF4 without double quantization",
    "int8": "int8",
    "fp16": "fp16",
}

def search_table(source):
    """Contenders on the weights of one source: the least time, and errors over those of nibble's largest magnitudes."""
    _, lines = record.load(record.RESULTS / "search.jsonl")
    largest = lines.get(f"{source}/nibble, max")
    rows = []
    for name, line in lines.items():
        if name.startswith(f"{source}/"):
            seconds = min(line["samples"])
            rate = line["bytes"] / seconds / 1e9
            rows.append([name.partition("/")[2], f"{line['bits_per_weight']:.2f}",
                         f"{seconds * 1e3:.{0 if seconds > 0.01 else 1}f}", f"{rate:.{2 if rate > 0.1 else 3}f}",
                         *(f"{line[key] / largest[key]:.3f}" for key in ("rmse", "mae"))])  # fmt: skip
    head = ["", "bits per weight", "ms", "GB/s of bf16", "RMSE / that of max", "mean \\|error\\| / that of max"]
    return markdown(head, rows) if rows else "Not measured yet.\n"


def rate_distortion(bits):
    """The least RMSE of independent numbers of N(0, 1) that a code of so many bits each can have."""
    return 2.0**-bits


def lloyd_max(levels):
    """The least RMSE of so many values, each number of N(0, 1) rounded to the nearest (Lloyd's method)."""

    def density(x):
        return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)

    def below(x):
        return (1 + math.erf(x / math.sqrt(2))) / 2

    values, change = [4 * (i + 0.5) / levels - 2 for i in range(levels)], 1.0
    while change > 1e-12:  # until each value is the mean of the numbers that are nearest to it
        ends = [-math.inf, *((low + high) / 2 for low, high in zip(values, values[1:])), math.inf]
        shares = [below(high) - below(low) for low, high in zip(ends, ends[1:])]
        means = [(density(low) - density(high)) / share for low, high, share in zip(ends, ends[1:], shares)]
        values, change = means, max(abs(mean - value) for mean, value in zip(means, values))
    return math.sqrt(1 - sum(share * mean**2 for share, mean in zip(shares, means)))


def block_sizes_table():
    """RMSE of normal weights by block size, over that of the largest magnitude in parentheses, beside the bounds."""
    _, lines = record.load(record.RESULTS / "search.jsonl")
    sizes = sorted({int(name.split("/")[0].split()[-1]) for name in lines if name.startswith("block size ")})
    if not sizes:
        return "Not measured yet.\n"

    def line(size, codec, choice, double_quant):
        return lines[f"block size {size}/{codec}:absmax={choice},double-quant={double_quant}"]

    def bits(double_quant):
        return [line(size, "nf4", "max", double_quant)["bits_per_weight"] for size in sizes]

    def errors(codec, choice, double_quant):
        found = []
        for size in sizes:
            rmse, largest = (line(size, codec, which, double_quant)["median"] for which in (choice, "max"))
            found.append(f"{rmse:.4f}" if choice == "max" else f"{rmse:.4f} ({rmse / largest:.3f})")
        return found

    ways = {"no": "", "yes": ", double quantization"}
    rows = [[f"bits per weight{way}", *(f"{each:.2f}" for each in bits(key))] for key, way in ways.items()]
    rows += [[f"{codec.upper()}, {choice}{way}", *errors(codec, choice, key)]
             for codec in ("nf4", "fp4") for key, way in ways.items()
             for choice in (("max", "search-positive", "search") if codec == "nf4" else ("max", "search"))]  # fmt: skip
    rows.append(["Lloyd-Max, 4 bits", *[f"{lloyd_max(16):.4f}"] * len(sizes)])
    rows += [[f"bound{way}", *(f"{rate_distortion(each):.4f}" for each in bits(key))] for key, way in ways.items()]
    return markdown(["block size", *map(str, sizes)], rows)


def compensation_table():
    """Medians of processor time on one thread and of time on two, and the first over that of nibble's default."""
    columns = [record.load(record.RESULTS / f"{name}.jsonl") for name in ("compensation", "compensation_two_threads")]
    if not all(run for run, _ in columns):
        return "Not measured yet.\n"

    def seconds(column, name):
        run, lines = column
        at = f"compensation/{run['size']}/"
        if name == "factor":
            return statistics.median(sample for each, line in lines.items() if each.endswith("/factor")
                                     for sample in line["samples"])  # fmt: skip
        parts = [f"{at}{name}"] if f"{at}{name}" in lines else [f"{at}{name}/{part}" for part in ("factor", "codes")]
        return statistics.median(map(sum, zip(*(lines[part]["samples"] for part in parts))))

    rows = []
    for name, what in COMPENSATED.items():
        one, two = (seconds(column, name) for column in columns)
        rows.append([what, f"{one:.2f}", f"{one / seconds(columns[0], 'nf4'):.2f}", f"{two:.1f}"])
    return markdown(["", "one thread, processor time, s", "/ NF4, double quantization", "two threads, s"], rows)


def compensation_text():
    runs = [record.load(record.RESULTS / f"{name}.jsonl")[0] for name in ("compensation", "compensation_two_threads")]
    if not all(runs):
        return "Not measured yet.\n"
    loads = " and ".join(f"{run['load_average']:.1f}" for run in runs)
    return (f"Measured {runs[0]['date']}: a matrix of {runs[0]['size']} x {runs[0]['size']}; {host_text(runs[0])}. The "
            f"load before the two runs was {loads}.\n")  # fmt: skip


COMPENSATED = {
    "factor": "nibble, the factor alone",
    "cholesky in torch": "torch's Cholesky factorization in fp64, for comparison",
    "nf4:double-quant=no": "nibble, NF4",
    "nf4": "nibble, NF4, double quantization",
    "nf4:absmax=search": "nibble, NF4, search, double quantization",
    "int8": "nibble, int8",
    "llm-compressor": "llm-compressor's GPTQ, int4",
    "gptq in torch": "GPTQ in torch, with NF4's largest magnitudes",
}

MEASURE_TARGETS = [
    Target("measuring NF4, time of the conversion", "measure", ratio("measure/nf4", "convert/nf4"), 1, at_most=True),
    Target("three formats by --to, time of one", "measure", ratio("measure/to-three", "measure/to-nf4"), 2,
           at_most=True),
    Target("measuring NF4 against a script with bitsandbytes and torch", "measure",
           ratio("peer/measure/nf4", "measure/nf4"), 20),
]  # fmt: skip

TABLES = {
    "machine": lambda: machine_text("convert"),
    "targets": targets_table,
    "times": lambda: times_table("convert", "sizes"),
    "codecs_machine": lambda: machine_text("codecs"),
    "codecs": codecs_table,
    "avx2_machine": lambda: machine_text("codecs_avx2"),
    "avx2": lambda: codecs_table("codecs_avx2"),
    "peers": peers_table,
    "scaling": scaling_table,
    "check": check_table,
    "profile": profile_table,
    "evaluated": evaluated_text,
    "perplexity": perplexity_table,
    "layers": layers_table,
    "cosine": cosine_table,
    "quality": quality_text,
    "quality_kld": lambda: quality_table("kld", ("#.3g", ".1g"), ["avoided"], kld_avoided),
    "quality_perplexity": lambda: quality_table(
        "ln_ratio", (".0f", ".0f"), ["root mean square", "of the standard errors"], magnitudes),
    "quality_perplexity_avoided": perplexity_avoided_table,
    "quality_smollm2_kld": lambda: smollm2_table("kld"),
    "quality_smollm2_perplexity": lambda: smollm2_table("ln_ratio"),
    "quality_cosine": quality_cosine_table,
    "quality_calibrations": quality_calibrations_table,
    "minilm": minilm_table,
    "measure_machine": lambda: machine_text("measure"),
    "measured": measured_table,
    "error_report": error_report_table,
    "search_machine": lambda: machine_text("search"),
    "search_minilm": lambda: search_table("minilm"),
    "search_normal": lambda: search_table("normal"),
    "search_block_sizes": block_sizes_table,
    "compensation_text": compensation_text,
    "compensation": compensation_table,
}


def filled(page):
    """The page with every table as the results have it."""
    return re.sub(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)",
                  lambda match: match[1] + TABLES[match[2]]() + match[3], page, flags=re.S)  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--check", type=pathlib.Path, metavar="FILE")
    options = parser.parse_args()
    if page := options.write or options.check:
        new = filled(page.read_text())
        if options.write:
            page.write_text(new)
        elif new != page.read_text():
            sys.exit(f"error: {page} is not what bench/results says: bench/table.py --write {page}")
        return
    print_targets(all_results())


if __name__ == "__main__":
    main()
