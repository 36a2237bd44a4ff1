"""What `python -m nibble` says: which nibble this is, what it found, and why it does without the rest."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import pathlib
from typing import Any

from . import _library
from .errors import Error

PACKAGES = ("numpy", "torch", "transformers", "peft", "bitsandbytes")


def diagnose() -> dict[str, Any]:
    """The facts as `python -m nibble --json` prints them. A fact that could not be found is None, and the member `why`
    beside it says why. Imports torch and bitsandbytes where they are installed."""
    packages = {name: version_of(name) for name in PACKAGES}
    return {
        **of_library(),
        "program": text_of(_library.find("nibble", "NIBBLE")),
        "cuda": of_cuda(),
        "packages": packages,
        "operators": of_operators(packages),
        "bitsandbytes": of_backend(packages),
    }


def version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def text_of(path: pathlib.Path | None) -> str | None:
    return None if path is None else str(path)


def of_library() -> dict[str, Any]:
    path = text_of(_library.find("libnibble.so", "NIBBLE_LIBRARY"))
    try:
        targets, in_use = _library.cpu_targets()
        cpu: dict[str, Any] = {"cpu_target": in_use, "cpu_targets": targets, "cpu_extensions": _library.cpu_extensions()}
        return {"version": _library.version(), "library": path, **cpu, "why": None}
    except Error as error:
        cpu = {"cpu_target": None, "cpu_targets": [], "cpu_extensions": []}
        return {"version": None, "library": path, **cpu, "why": str(error)}


def of_cuda() -> dict[str, Any]:
    """libnibble_cuda, and the device that `convert --device cuda` would use."""
    path = _library.find("libnibble_cuda.so", "NIBBLE_CUDA_LIBRARY")
    found: dict[str, Any] = {"library": text_of(path), "device": None, "why": None}
    if path is None:
        return found | {"why": "nibble was built without CUDA"}
    number, name = ctypes.c_int(), ctypes.create_string_buffer(256)
    try:
        library = ctypes.CDLL(str(path))
        library.nibble_last_error.restype = ctypes.c_char_p
        if library.nibble_find_device(ctypes.byref(number), name, ctypes.c_size_t(len(name))) != 0:
            return found | {"why": library.nibble_last_error().decode(errors="replace")}
    except (OSError, AttributeError) as error:
        return found | {"why": str(error)}
    return found | {"device": name.value.decode(errors="replace")}


def of_operators(packages: dict[str, str | None]) -> dict[str, Any]:
    """torch.ops.nibble."""
    path = text_of(_library.find("libnibble_torch.so", "NIBBLE_TORCH_LIBRARY"))
    if packages["torch"] is None:
        return {"library": path, "loaded": False, "why": "torch is not installed"}
    try:
        from . import operators  # noqa: F401
    except Exception as error:  # whatever is wrong with this torch
        return {"library": path, "loaded": False, "why": str(error)}
    return {"library": path, "loaded": True, "why": None}


def of_backend(packages: dict[str, str | None]) -> dict[str, Any]:
    """The operators of bitsandbytes that are nibble's once bitsandbytes is imported."""
    if packages["bitsandbytes"] is None:
        return {"replaced": [], "why": "bitsandbytes is not installed"}
    try:
        import bitsandbytes  # noqa: F401

        from . import backend
    except Exception as error:
        return {"replaced": [], "why": f"{type(error).__name__}: {error}"}
    replaced = backend.replaced()
    if replaced:
        return {"replaced": replaced, "why": None}
    if backend.is_turned_off():
        return {"replaced": [], "why": f"{backend.VARIABLE} is {os.environ[backend.VARIABLE]}"}
    if backend.failure is not None:
        return {"replaced": [], "why": backend.failure}
    return {"replaced": [], "why": "bitsandbytes has not called nibble: nibble is not installed with its entry point"}


def lines(facts: dict[str, Any]) -> list[str]:
    """The facts for a reader."""
    cuda, operators, behind = facts["cuda"], facts["operators"], facts["bitsandbytes"]
    versions = [f"{name} {version or '(not installed)'}" for name, version in facts["packages"].items()]
    replaced = [name.removeprefix("bitsandbytes::") for name in behind["replaced"]]
    cpu = " ".join([facts["cpu_target"] or "unknown", *facts["cpu_extensions"]])
    if facts["cpu_targets"]:
        cpu += f" (targets: {' '.join(facts['cpu_targets'])})"
    table = {
        "nibble": facts["version"] or facts["why"],
        "libnibble": facts["library"] or "not found",
        "program": facts["program"] or "not found",
        "CPU": cpu,
        "CUDA": cuda["device"] or f"not used: {cuda['why']}",
        "libnibble_cuda": cuda["library"] or "not built",
        "packages": ", ".join(versions),
        "torch.ops.nibble": operators["library"] if operators["loaded"] else f"not loaded: {operators['why']}",
        "behind bitsandbytes": ", ".join(replaced) or f"nothing: {behind['why']}",
    }
    width = max(map(len, table))
    return [f"{name:<{width}}  {fact}" for name, fact in table.items()]
