"""nibble.calibration.open(STATS): the statistics that `python -m nibble.calibrate` wrote. docs/calibration.md has the
format.

Only numpy is needed.
"""

from __future__ import annotations

import json
import math
import os
import pathlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from .checkpoint import Checkpoint, open_checkpoint
from .errors import BadInputError

FORMAT = "nibble.calibration"
VERSION = 1
MANIFEST = "calibration.json"
PROGRESS = "progress.json"
"""What a calibration that has not ended has instead of the manifest."""


@dataclass(frozen=True)
class Input:
    """What one or more weights are multiplied by: rows of `columns` values, one for each of `tokens` tokens."""

    name: str
    columns: int
    tokens: int
    file: str


class Calibration:
    """A directory of statistics, whose manifest and headers have been checked. Arrays are mapped when asked for."""

    def __init__(self, path: str | os.PathLike[str]):
        self.path = pathlib.Path(path)
        self.manifest = _read_manifest(self.path)
        self.second_moments: bool = self._member(self.manifest, "second_moments", bool, "manifest")
        self.inputs: dict[str, Input] = {}
        """By name."""
        self.weights: dict[str, list[str | None]] = {}
        """{tensor of the checkpoint: its input, or one for each of its experts; None: no token reached it}."""
        self.sensitivities: dict[str, float] = {}
        """{tensor of the checkpoint: what its relative squared error does to the model's output}, where known."""
        self._files: dict[str, Checkpoint] = {}
        for name, member in self._member(self.manifest, "inputs", dict, "manifest").items():
            self.inputs[name] = self._input(name, member)
        for name, inputs in self._member(self.manifest, "weights", dict, "manifest").items():
            self.weights[name] = self._weight(name, inputs)
        if "sensitivities" in self.manifest:
            for name, value in self._member(self.manifest, "sensitivities", dict, "manifest").items():
                self.sensitivities[name] = self._sensitivity(name, value)

    def mean_square(self, name: str) -> np.ndarray:
        """The mean of the squares of each column of an input, fp32."""
        return self._tensor(name, "mean_square")

    def absmax(self, name: str) -> np.ndarray:
        """The largest magnitude in each column of an input, fp32."""
        return self._tensor(name, "absmax")

    def second_moment(self, name: str) -> np.ndarray:
        """The mean of x x^T over the tokens of an input, [columns, columns], fp32."""
        return self._tensor(name, "second_moment")

    def _tensor(self, name: str, statistic: str) -> np.ndarray:
        return self._files[self.inputs[name].file][f"{name}.{statistic}"]

    def _refuse(self, fact: str) -> BadInputError:
        return BadInputError(f"{self.path / MANIFEST}: {fact}")

    def _member(self, owner: Any, name: str, kind: type, where: str) -> Any:
        value = owner.get(name) if isinstance(owner, dict) else None
        if type(value) is not kind:
            raise self._refuse(f"{where}: '{name}' is not of type {kind.__name__}")
        return value

    def _input(self, name: str, member: Any) -> Input:
        where = f"input '{name}'"
        columns, tokens = self._member(member, "columns", int, where), self._member(member, "tokens", int, where)
        file = self._member(member, "file", str, where)
        if columns < 1 or tokens < 1:
            raise self._refuse(f"{where}: has {columns} columns and {tokens} tokens, at least 1 of each is needed")
        if os.path.basename(file) != file:
            raise self._refuse(f"{where}: '{file}' is not the name of a file in this directory")
        if file not in self._files:
            self._files[file] = open_checkpoint(self.path / file)
        shapes: dict[str, tuple[int, ...]] = {"mean_square": (columns,), "absmax": (columns,)}
        if self.second_moments:
            shapes["second_moment"] = (columns, columns)
        for statistic, shape in shapes.items():
            self._check_tensor(file, f"{name}.{statistic}", shape)
        return Input(name, columns, tokens, file)

    def _check_tensor(self, file: str, name: str, shape: tuple[int, ...]) -> None:
        tensors = self._files[file]
        if name not in tensors:
            raise BadInputError(f"{self.path / file}: has no tensor '{name}'")
        info = tensors.info(name)
        if info.dtype != "F32" or info.shape != shape:
            raise BadInputError(
                f"{self.path / file}: tensor '{name}': is {info.dtype} {list(info.shape)}, not F32 {list(shape)}"
            )

    def _weight(self, name: str, inputs: Any) -> list[str | None]:
        if not isinstance(inputs, list) or not inputs:
            raise self._refuse(f"weight '{name}': is not a list of one or more inputs")
        if not all(item is None or isinstance(item, str) for item in inputs):
            raise self._refuse(f"weight '{name}': an input is neither a name nor null")
        unknown = next((item for item in inputs if item is not None and item not in self.inputs), None)
        if unknown is not None:
            raise self._refuse(f"weight '{name}': has the input '{unknown}', which is not listed")
        return inputs

    def _sensitivity(self, name: str, value: Any) -> float:
        if name not in self.weights:
            raise self._refuse(f"sensitivity of '{name}': this weight is not listed")
        if type(value) not in (int, float) or not 0 <= value < math.inf:
            raise self._refuse(f"sensitivity of '{name}': is not a finite number of at least 0")
        return float(value)


def open(path: str | os.PathLike[str]) -> Calibration:
    """Opens a directory of statistics. Raises nibble.BadInputError if it is none, not complete, or damaged."""
    return Calibration(path)


def _read_manifest(directory: pathlib.Path) -> dict[str, Any]:
    path = directory / MANIFEST
    if not directory.is_dir():
        raise BadInputError(f"{directory}: is not a directory")
    if not path.exists() and (directory / PROGRESS).exists():
        raise BadInputError(f"{directory}: is not complete; python -m nibble.calibrate --resume goes on with it")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInputError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise BadInputError(f"{path}: {error}") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise BadInputError(f"{path}: 'format' is not '{FORMAT}'")
    version = manifest.get("version")
    if type(version) is not int or version != VERSION:
        raise BadInputError(f"{path}: has version {json.dumps(version)}, this nibble reads {VERSION}")
    return manifest
