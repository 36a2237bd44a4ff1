"""The directory of statistics while it is written.

Each stage of the model (what is before its layers, each layer, what is after them) adds one file of tensors. Beside
them are progress.json, which lists the stages that are done, and the hidden states after the last of these. When all
are done, calibration.json is written and the other two are removed: what has a manifest is complete. Files are written
under another name, flushed, and renamed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pathlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import safetensors
import safetensors.torch
import torch

from ..calibration import MANIFEST, PROGRESS
from ..errors import Error, OutputExistsError, ReadWriteError, system_error
from ..model_directory import BadInput, check_header, one_line, read_json

OURS = re.compile(
    rf"({re.escape(MANIFEST)}|{re.escape(PROGRESS)}|(before|after|whole|layer-\d+)\.safetensors|states-\d+)(\.partial)?"
)


class Output:
    """`identity`: what the statistics are of. A run that goes on must be of the same."""

    def __init__(self, path: pathlib.Path, identity: dict[str, Any], resume: bool, overwrite: bool):
        self.path, self._done = path, False
        with writing(path):
            if path.exists() and not path.is_dir():
                raise OutputExistsError(f"{path}: exists, and is not a directory")
            self._is_new = not path.exists()
            path.mkdir(exist_ok=True)
            self._lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._progress = self._begin(identity, resume, overwrite)
        except BlockingIOError:
            os.close(self._lock)
            raise OutputExistsError(f"{path}: another nibble is writing it") from None
        except BaseException:
            os.close(self._lock)
            raise

    def close(self) -> None:
        """Removes what has nothing to go on with."""
        if not self._done and not self.stages:
            self._clear()
        os.close(self._lock)

    @property
    def stages(self) -> dict[str, Any]:
        """{stage that is done: {"inputs", "weights", "returned"}}"""
        stages: dict[str, Any] = self._progress["stages"]
        return stages

    def save(self, stage: str, result: dict[str, Any], tensors: dict[str, Any], states: States | None) -> None:
        """Ends a stage. `states`: hidden states after it."""
        if tensors:
            with replacing(self.path / f"{stage}.safetensors") as partial:
                safetensors.torch.save_file(tensors, partial)
        before = self._progress["states"]
        self._progress["states"] = None if states is None else states.description
        self._progress["stages"][stage] = result
        self._write_json(PROGRESS, self._progress)
        if before is not None:
            (self.path / before["file"]).unlink(missing_ok=True)

    def new_states(self) -> States:
        return States(self.path, {"file": f"states-{len(self.stages)}", "dtype": None, "width": 0})

    def states(self) -> States:
        """Those after the last stage that is done."""
        return States(self.path, self._progress["states"])

    def complete(self, manifest: dict[str, Any]) -> None:
        self._write_json(MANIFEST, manifest)
        self._done = True
        self._remove(keep=MANIFEST, pattern=re.compile(rf"{re.escape(PROGRESS)}|states-\d+|.*\.partial"))

    def _begin(self, identity: dict[str, Any], resume: bool, overwrite: bool) -> dict[str, Any]:
        names = os.listdir(self.path)
        foreign = next((name for name in sorted(names) if not OURS.fullmatch(name)), None)
        if foreign is not None:
            raise OutputExistsError(f"{self.path}: exists, and has '{foreign}', which is not of a calibration")
        if names and overwrite:
            self._remove()
        elif MANIFEST in names:
            raise OutputExistsError(f"{self.path}: exists (--overwrite replaces it)")
        elif PROGRESS in names:
            if not resume:
                raise OutputExistsError(
                    f"{self.path}: is not complete (--resume goes on with it, --overwrite begins anew)"
                )
            progress: dict[str, Any] = read_json(self.path / PROGRESS)
            self._check(progress, identity)
            self._check_stages(progress)
            return progress
        self._remove()
        progress = {"identity": identity, "stages": {}, "states": None}
        try:
            self._write_json(PROGRESS, progress)
        except BaseException:
            self._clear()
            raise
        return progress

    def _check(self, progress: Any, identity: dict[str, Any]) -> None:
        before = progress.get("identity") if isinstance(progress, dict) else None
        if before == identity:
            return
        before = before if isinstance(before, dict) else {}
        what = next((name for name in identity | before if before.get(name) != identity.get(name)), "identity")
        raise OutputExistsError(f"{self.path}: was begun with another '{what}' (--overwrite begins anew)")

    def _check_stages(self, progress: dict[str, Any]) -> None:
        """What is done must still be there: the manifest says that it is."""
        stages = progress.get("stages")
        if not isinstance(stages, dict) or "states" not in progress or not all(map(is_result, stages.values())):
            raise BadInput(f"{self.path / PROGRESS}: does not list the stages that are done")
        for stage, result in stages.items():
            if result["inputs"]:
                check_header(self.path / f"{stage}.safetensors")

    def _clear(self) -> None:
        self._remove()
        if self._is_new:
            self.path.rmdir()

    def _remove(self, keep: str = "", pattern: re.Pattern[str] = OURS) -> None:
        """The manifest first: what is left is not complete."""
        with writing(self.path):
            for name in sorted(os.listdir(self.path), key=lambda name: name != MANIFEST):
                if name != keep and pattern.fullmatch(name):
                    (self.path / name).unlink()

    def _write_json(self, name: str, content: dict[str, Any]) -> None:
        with replacing(self.path / name) as partial:
            partial.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def is_result(result: Any) -> bool:
    return isinstance(result, dict) and "inputs" in result


class States:
    """Hidden states of all batches, one after the other in a file. Read and written in the order of the batches."""

    def __init__(self, directory: pathlib.Path, description: dict[str, Any]):
        self.description = description
        self._path = directory / description["file"]

    @contextlib.contextmanager
    def writer(self) -> Iterator[Callable[[Any], None]]:
        """write(hidden) appends [sequences, tokens, width]."""
        with replacing(self._path) as partial, open(partial, "wb") as file:

            def write(hidden: Any) -> None:
                self.description |= {"dtype": str(hidden.dtype).removeprefix("torch."), "width": hidden.shape[-1]}
                file.write(hidden.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())

            yield write

    def read(self, shapes: list[tuple[int, int]]) -> Iterator[Any]:
        """Hidden states [sequences, tokens, width], for each (sequences, tokens)."""
        dtype, width = getattr(torch, self.description["dtype"]), self.description["width"]
        with writing(self._path), open(self._path, "rb") as file:
            for shape in shapes:
                hidden = torch.empty(*shape, width, dtype=dtype)
                read = file.readinto(hidden.flatten().view(torch.uint8).numpy())
                if read != hidden.nbytes:
                    raise ReadWriteError(f"{self._path}: is too short")
                yield hidden


@contextlib.contextmanager
def writing(path: pathlib.Path) -> Iterator[None]:
    """Errors of the system become one line with the path."""
    try:
        yield
    except Error:
        raise
    except OSError as error:
        raise system_error(f"{error.filename or path}: {error.strerror or one_line(error)}", error) from None
    except safetensors.SafetensorError as error:
        raise ReadWriteError(f"{path}: {one_line(error)}") from None


@contextlib.contextmanager
def replacing(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A file to write, which becomes `path` at the end."""
    partial = path.with_name(path.name + ".partial")
    with writing(path):
        yield partial
        file = os.open(partial, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(file)
        finally:
            os.close(file)
        os.replace(partial, path)
