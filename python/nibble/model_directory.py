"""What is checked of a model directory before transformers opens it.

Its own errors say neither which file is damaged nor, in one line, what is wrong with it, and it waits for ever at a named
pipe. Nothing here reads weights: of each file of them, the header alone.
"""

from __future__ import annotations

import json
import os
import pathlib
import stat
from typing import Any, Union

import safetensors
import torch


Path = Union[str, "os.PathLike[str]"]


class BadInput(Exception):
    """A directory or a text that can't be measured: exit code 3, and this text."""


def one_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def read_text(path: Path) -> str:
    """The whole of a regular file: a pipe without a writer would be waited for without end."""
    check_regular(path)
    try:
        return pathlib.Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: is not UTF-8: byte {error.start}") from None


def read_json(path: Path) -> Any:
    text = read_text(path)
    try:
        return json.loads(text)
    except ValueError as error:
        raise BadInput(f"{path}: {error}") from None
    except RecursionError:
        raise BadInput(f"{path}: is nested too deeply") from None


def read_config(directory: Path) -> dict[str, Any]:
    """config.json, whose fields that are used here have the types that they should have."""
    if not pathlib.Path(directory).is_dir():
        raise BadInput(f"{directory}: is not a directory")
    path = pathlib.Path(directory) / "config.json"
    config = read_json(path)
    if not isinstance(config, dict):
        raise BadInput(f"{path}: is not a JSON object")
    names = config.get("architectures")
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise BadInput(f"{path}: 'architectures' is not a list of names")
    return config


def check_directory(directory: Path) -> None:
    """Throws BadInput with the first file that is no file, no JSON, or no complete safetensors file."""
    read_config(directory)
    try:
        paths = sorted(pathlib.Path(directory).iterdir())
    except OSError as error:
        raise BadInput(f"{directory}: {error.strerror}") from None
    for path in paths:
        if not path.is_dir():
            check_regular(path)
        if path.name.endswith(".index.json"):
            for shard in sorted(shards(path)):
                check_regular(shard)
                check_header(shard)
        elif path.suffix == ".json":
            read_json(path)
        check_header(path)


def shards(index: pathlib.Path) -> set[pathlib.Path]:
    """The files that an index of shards names."""
    content = read_json(index)
    names = content.get("weight_map") if isinstance(content, dict) else None
    if not (isinstance(names, dict) and all(isinstance(name, str) for name in names.values())):
        raise BadInput(f"{index}: 'weight_map' is not an object of file names")
    return {index.parent / name for name in names.values()}


def check_regular(path: Path) -> None:
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from None
    except ValueError as error:  # a null byte in a name
        raise BadInput(f"{path}: {error}") from None
    if not stat.S_ISREG(mode):
        raise BadInput(f"{path}: is not a regular file")


def check_header(path: pathlib.Path) -> None:
    if path.suffix != ".safetensors":
        return
    try:
        with safetensors.safe_open(path, "pt"):
            pass
    except (safetensors.SafetensorError, OSError) as error:
        raise BadInput(f"{path}: {one_line(error)}") from None


def check_pickles(directory: Path) -> None:
    """Throws BadInput with the first of torch's own files that can't be read. It reads all of them: for when loading has
    failed, to say why."""
    for path in sorted(pathlib.Path(directory).glob("*.bin")):
        try:
            torch.load(path, map_location="meta", weights_only=True)
        except Exception as error:  # of a damaged pickle, anything
            raise BadInput(f"{path}: {one_line(error)}") from None
