"""Tells transformers and peft of nibble, now or when they are imported, and imports neither them nor torch.

So a script that imports nibble can open with from_pretrained() what only nibble reads.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from importlib.machinery import ModuleSpec
from typing import Any

# When the module on the left is there, register() of the one on the right is called.
WAITING = {"transformers.quantizers.auto": "quantizer", "peft.tuners.tuners_utils": "adapters"}


def register_when_imported() -> None:
    for name in WAITING:
        if name in sys.modules:
            _register(name)
        elif not any(isinstance(finder, _Finder) and finder.name == name for finder in sys.meta_path):
            sys.meta_path.insert(0, _Finder(name))


def _register(name: str) -> None:
    """Only warns if that fails: the import that it is a part of is the user's, who may not need nibble there."""
    try:
        importlib.import_module("." + WAITING[name], __package__).register()
    except (ImportError, AttributeError) as error:
        warnings.warn(f"{name} goes without nibble: {error}", stacklevel=2)


class _Finder:
    """Finds the module as Python would without it, and has _register() called once the module is there."""

    def __init__(self, name: str) -> None:
        self.name = name

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_register(module: Any) -> None:
                run(module)
                _register(name)

            spec.loader.exec_module = run_and_register  # type: ignore[method-assign]
        return spec
