"""Calibration: python -m nibble.calibrate MODEL --text FILE --out STATS

Runs MODEL, a directory as transformers loads it, over a text, and writes what its weights are multiplied by: the mean
square and the largest magnitude of each input column and, with --second-moments, the mean of x x^T. With
--sensitivities, also how much its output suffers for an error of each weight. STATS is a directory of safetensors files
with a manifest, calibration.json.

The text is cut into sequences of --sequence-length tokens; of encoders, each line of it is a sequence. Layers run one
after the other, each over all of the text, and are written when they are done: what was interrupted goes on with
--resume. A model that does not fit into memory is loaded a layer at a time.

The format, and what it costs: docs/calibration.md. Exit codes: 0 done, 2 usage or a missing package, 3 bad input,
4 reading or writing failed, 5 not enough memory, 6 STATS exists, 130 interrupted.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from typing import Any

from ..errors import Error
from ..evaluate import OneLineParser, at_least, fail

NEEDED = "nibble.calibrate needs the Python packages torch and transformers"


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = OneLineParser(prog="python -m nibble.calibrate", description=__doc__,
                           formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("model", metavar="MODEL", help="the directory of the unquantized model")
    parser.add_argument("--text", metavar="FILE", required=True, help="a text in UTF-8, like what the model will read")
    parser.add_argument("--out", metavar="STATS", required=True, help="the directory to write")
    parser.add_argument("--second-moments", action="store_true",
                        help="also X^T X, which compensation needs: columns x columns for each input")  # fmt: skip
    parser.add_argument("--sensitivities", action="store_true",
                        help="also how much the output suffers for an error of each weight, which advice goes by: "
                             "the model runs again for each")  # fmt: skip
    parser.add_argument("--sequence-length", metavar="N", type=at_least(1),
                        help="tokens per sequence [512, or all positions of the model if it has fewer]")  # fmt: skip
    parser.add_argument("--sequences", metavar="N", type=at_least(1),
                        help="stop after so many sequences, or lines for encoders [all of the text]")  # fmt: skip
    parser.add_argument("--batch", metavar="N", type=at_least(1), default=1, help="sequences that run at once [1]")
    parser.add_argument("--layer-by-layer", action="store_true",
                        help="load one layer at a time [if the weights exceed 80 %% of the free memory]")  # fmt: skip
    parser.add_argument("--resume", action="store_true", help="go on with STATS where it was interrupted")
    parser.add_argument("--overwrite", action="store_true", help="remove the statistics that STATS has, and begin anew")
    parser.add_argument("--dtype", choices=("auto", "float32", "float16", "bfloat16"), default="auto",
                        help="the type the model computes in [that of the directory]")  # fmt: skip
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--threads", metavar="N", type=at_least(1), help="CPU threads [those of torch]")
    parser.add_argument("--progress", choices=("auto", "plain", "none"), default="auto",
                        help="on stderr, from the fifth second on; plain: a line every 10 s [on a terminal, one line "
                             "that changes]")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="the figures of the summary as one JSON object on stdout")
    options = parser.parse_args(arguments)
    if options.resume and options.overwrite:
        parser.error("--resume and --overwrite exclude each other")
    if options.sensitivities and options.layer_by_layer:
        parser.error("--sensitivities and --layer-by-layer exclude each other: the whole model has to run")
    return options


class Progress:
    """Which stage runs, and how long the rest takes if all stages take as long. Sensitivities are counted anew."""

    def __init__(self, kind: str):
        self._line = kind == "auto" and sys.stderr.isatty()
        self._silent = kind == "none"
        self._start = time.monotonic()
        self._next, self._shown = self._start + 5, False
        self._first: float | None = None
        self._done = 0.0

    def __call__(self, stage: str, number: int, stages: int, batch: int, batches: int, unit: str = "batch") -> None:
        now, done = time.monotonic(), number + batch / batches
        if self._first is None or done < self._done:
            self._first, self._begin = done, now
        self._done = done
        if self._silent or now < self._next:
            return
        self._next = now + (0.2 if self._line else 10)
        text = f"{stage}: {number + 1} of {stages}, {unit} {batch + 1} of {batches}"
        if done > self._first:
            text += f", {duration((now - self._begin) / (done - self._first) * (stages - done))} left"
        print(f"\r\033[K{text}" if self._line else text, end="" if self._line else "\n", file=sys.stderr, flush=True)
        self._shown = self._line

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start

    def clear(self) -> None:
        if self._shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
            self._shown = False


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def calibrate(options: argparse.Namespace, progress: Progress) -> dict[str, Any]:
    """The manifest."""
    try:
        import torch

        from ..model_directory import BadInput, one_line
        from ..model_error import out_of_memory, quiet
        from .job import Calibration, Options
    except ImportError as error:
        fail(2, f"{NEEDED}: {error}")
    if options.threads:
        torch.set_num_threads(options.threads)
    quiet()
    known = {field.name: getattr(options, field.name) for field in dataclasses.fields(Options)}
    try:
        return Calibration(Options(**known), progress).run()
    except Error as error:
        progress.clear()
        fail(error.code, str(error))
    except BadInput as error:
        progress.clear()
        fail(3, str(error))
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        progress.clear()
        fail(5, f"not enough memory: {one_line(error)}")


def summary(manifest: dict[str, Any], options: argparse.Namespace, seconds: float) -> dict[str, Any]:
    from .inputs import attended

    tokens = [member["tokens"] for member in manifest["inputs"].values()]
    text = manifest["text"]
    return {
        "schema_version": 1,
        "model": options.model,
        "out": options.out,
        "sequences": text["sequences"],
        "tokens": text["tokens"],
        "weights": len(manifest["weights"]),
        "inputs": len(tokens),
        "value_projections": sum(inputs == [attended(weight)] for weight, inputs in manifest["weights"].items()),
        "fewest_tokens": min(tokens),
        "second_moments": manifest["second_moments"],
        "sensitivities": len(manifest.get("sensitivities", {})),
        "seconds": round(seconds, 3),
    }


def print_summary(figures: dict[str, Any]) -> None:
    what = "mean squares, absmax" + (", second moments" if figures["second_moments"] else "")
    if figures["sensitivities"]:
        what += f", sensitivities of {figures['sensitivities']} weights"
    print(f"{figures['out']}: {what} of {figures['inputs']} inputs, which {figures['weights']} weights take; "
          f"value projections recognized: {figures['value_projections']}; {figures['sequences']} sequences, "
          f"{figures['tokens']} tokens, {duration(figures['seconds'])}")  # fmt: skip
    if figures["fewest_tokens"] < figures["tokens"]:
        print(f"not every token reaches every weight: the least that reach one are {figures['fewest_tokens']}")


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    progress = Progress(options.progress)
    try:
        manifest = calibrate(options, progress)
    except KeyboardInterrupt:
        progress.clear()
        fail(130, f"interrupted; the same command with --resume goes on with {options.out}")
    progress.clear()
    figures = summary(manifest, options, progress.seconds)
    if options.json:
        print(json.dumps(figures, indent=1, allow_nan=False))
    else:
        print_summary(figures)


if __name__ == "__main__":
    main()
