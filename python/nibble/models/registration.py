"""Registers nibble's quantizer with transformers, now or when transformers is imported, and imports neither it nor torch.

So a script that imports nibble can open with from_pretrained() what only nibble reads.
"""

from __future__ import annotations

import importlib.util
import sys

REGISTRY = "transformers.quantizers.auto"


def register_with_transformers() -> None:
    if REGISTRY in sys.modules:
        _register()
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _register(*_) -> None:
    from .quantizer import register

    register()


class _Finder:
    """Finds the module as Python would without it, and has _register() called once the module is there."""

    def find_spec(self, name, path=None, target=None):
        if name != REGISTRY:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_register(module):
                run(module)
                _register()

            spec.loader.exec_module = run_and_register
        return spec
