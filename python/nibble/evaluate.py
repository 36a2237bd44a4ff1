"""Model-level error: python -m nibble.evaluate REF TEST... --text FILE

Runs REF and each TEST, model directories as transformers loads them, over a text and says how far TEST is from REF.

Language models (...ForCausalLM) get llama.cpp's figures: perplexity with its standard error, KL divergence of REF's
next-token distributions from TEST's (mean, maximum, 99.9 %, median), how often the likeliest token is the same, and
the root mean square of the change in the probability of the text's token. The text is cut into windows of --context
tokens, and of each the second half is scored. Of encoders, the cosine similarity of the embeddings of the text's lines,
each the mean over its tokens. For both, the error of each layer's output: as it adds up, and of the layer alone.

The formulas: docs/evaluate.md. Exit codes: 0 done, 2 usage or a missing package, 3 bad input, 5 not enough memory.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

NEEDED = "nibble.evaluate needs the Python packages torch and transformers (and bitsandbytes for what is quantized)"


class OneLineParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        fail(2, message)


def fail(code: int, message: str) -> NoReturn:
    """One line, whatever a file's name holds."""
    print("error: " + "".join(c if c.isprintable() else repr(c)[1:-1] for c in message), file=sys.stderr)
    sys.exit(code)


def at_least(minimum: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"'{text}' is not a number") from None
        if value < minimum:
            raise argparse.ArgumentTypeError(f"{text}, at least {minimum} is needed")
        return value

    return number


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = OneLineParser(prog="python -m nibble.evaluate", description=__doc__,
                           formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("reference", metavar="REF", help="the directory of the original model")
    parser.add_argument("tests", metavar="TEST", nargs="+", help="directories of models to compare with it")
    parser.add_argument("--text", metavar="FILE", required=True, help="a text in UTF-8")
    parser.add_argument("--context", metavar="N", type=at_least(8),
                        help="tokens per window [512, or all positions of the model if it has fewer]")  # fmt: skip
    parser.add_argument("--windows", metavar="N", type=at_least(1),
                        help="stop after so many windows, or lines for encoders [all of the text]")  # fmt: skip
    parser.add_argument("--batch", metavar="N", type=at_least(1), default=1,
                        help="windows, or lines, that run at once [1]")  # fmt: skip
    parser.add_argument("--layer-batches", metavar="N", type=at_least(0), default=4,
                        help="batches on which the error of each layer is measured; 0: none [4]")  # fmt: skip
    parser.add_argument("--dtype", choices=("auto", "float32", "float16", "bfloat16"), default="auto",
                        help="the type plain weights are computed in [that of the directory]")  # fmt: skip
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--threads", metavar="N", type=at_least(1), help="CPU threads [those of torch]")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    return parser.parse_args(arguments)


class Progress:
    """One line on a terminal's stderr, from the fifth second on."""

    def __init__(self) -> None:
        self._start, self._shown = time.monotonic(), False

    def __call__(self, text: str) -> None:
        if sys.stderr.isatty() and time.monotonic() - self._start > 5:
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
            self._shown = True

    def clear(self) -> None:
        if self._shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
            self._shown = False


def evaluate(options: argparse.Namespace, progress: Progress) -> dict[str, Any]:
    """The report of --json."""
    try:
        import torch

        from . import model_error
        from .model_directory import BadInput, check_directory, one_line
    except ImportError as error:
        fail(2, f"{NEEDED}: {error}")
    if options.device == "cuda" and not torch.cuda.is_available():
        fail(2, "--device cuda: torch finds no GPU")
    if options.device == "auto":
        options.device = "cuda" if torch.cuda.is_available() else "cpu"
    if options.threads:
        torch.set_num_threads(options.threads)
    model_error.quiet()
    try:
        for directory in (options.reference, *options.tests):  # before the first minute is spent
            check_directory(directory)
        comparison = model_error.Comparison(options.reference, options.text, options, progress)
        results = [comparison.run(test) for test in options.tests]
    except BadInput as error:
        progress.clear()
        fail(3, str(error))
    except (MemoryError, RuntimeError) as error:
        if not model_error.out_of_memory(error):
            raise
        progress.clear()
        fail(5, f"not enough memory for both models: {one_line(error)}")
    return {"schema_version": 1, **comparison.facts(), "dtype": options.dtype, "results": results}


def rows_of(head: list[str], rows: list[list[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(head, *rows)]
    for row in (head, *rows):
        print("  ".join(f"{cell:<{width}}" if i == 0 else f"{cell:>{width}}"
                        for i, (cell, width) in enumerate(zip(row, widths))).rstrip())  # fmt: skip


def pair(figure: dict[str, float], digits: int, factor: float = 1.0) -> str:
    return f"{figure['mean'] * factor:.{digits}f} ± {figure['error'] * factor:.{digits}f}"


def print_report(report: dict[str, Any]) -> None:
    results = report["results"]
    if report["kind"] == "language model":
        print(f"{report['text']}: {report['windows']} windows of {report['context']} tokens, the second half of each "
              f"scored: {results[0]['tokens']} tokens")  # fmt: skip
        head = ["", "perplexity", "ln(PPL/PPL REF)", "KLD mean", "max", "99.9 %", "median", "same top, %", "RMS dp, %"]
        rows = [[report["reference"], pair(results[0]["perplexity_reference"], 4), *[""] * 7]]
        for result in results:
            kld = result["kld"]
            rows.append([result["test"], pair(result["perplexity"], 4), pair(result["ln_ratio"], 5), pair(kld, 6),
                         f"{kld['max']:.4f}", f"{kld['p99.9']:.4f}", f"{kld['median']:.6f}",
                         pair(result["same_top"], 2, 100), pair(result["p_diff_rms"], 3, 100)])  # fmt: skip
    else:
        print(f"{report['text']}: embeddings of {report['lines']} lines against those of {report['reference']}")
        head = ["", "cosine mean", "least", "in line", "1 %", "median"]
        rows = [[result["test"], pair(result["cosine"], 6), f"{result['cosine']['min']:.6f}",
                 str(result["cosine"]["min_line"]), *(f"{result['cosine'][key]:.6f}" for key in ("p1", "median"))]
                for result in results]  # fmt: skip
    rows_of(head, rows)
    for result in results:
        if "layers" in result:
            print_layers(result)


def print_layers(result: dict[str, Any]) -> None:
    """The layer that adds most is marked: it is the first one to leave in 16 bits."""
    layers = result["layers"]
    most = max(layer["own"]["rel_rmse"] for layer in layers)
    print(f"\n{result['test']}: error of each layer's output")
    rows = []
    for layer in layers:
        figures = [f(layer[which]) for which in ("so_far", "own") for f in (relative, decibels)]
        rows.append([layer["name"], *figures, "<- most" if 0 < most == layer["own"]["rel_rmse"] else ""])
    rows_of(["", "so far: rel. RMSE", "SQNR, dB", "its own: rel. RMSE", "SQNR, dB", ""], rows)


def relative(figure: dict[str, Any]) -> str:
    return f"{figure['rel_rmse']:.2e}"


def decibels(figure: dict[str, Any]) -> str:
    return "exact" if figure["sqnr_db"] is None else f"{figure['sqnr_db']:.1f}"


def main(arguments: Sequence[str] | None = None) -> None:
    options, progress = parse(arguments), Progress()
    try:
        report = evaluate(options, progress)
    except KeyboardInterrupt:
        progress.clear()
        fail(130, "interrupted")
    progress.clear()
    if options.json:
        print(json.dumps(report, indent=1, allow_nan=False))
    else:
        print_report(report)


if __name__ == "__main__":
    main()
