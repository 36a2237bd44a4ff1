"""nibble: quantization of large model weights.

`convert`, `dequantize`, `merge`, `measure` and `inspect` are the commands of the program `nibble`; `open` gives the
stored tensors of a checkpoint as arrays, without a copy; `quantize_nf4` and its like work on numpy arrays and torch
tensors. Failures are exceptions of nibble.errors.

`python -m nibble.evaluate` measures what a quantized model lost. Only numpy is needed; torch and transformers are used
where they are installed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .commands import convert, dequantize, formats, inspect, measure, merge, run
from .errors import (
    BadInputError,
    Cancelled,
    DifferenceError,
    Error,
    InputChangedError,
    NoSpaceError,
    OutputExistsError,
    ReadWriteError,
    UsageError,
)
from .models.registration import register_when_imported

if TYPE_CHECKING:
    from .arrays import (
        FourBit,
        Int8,
        dequantize_fp4,
        dequantize_int8,
        dequantize_nf4,
        quantize_fp4,
        quantize_int8,
        quantize_nf4,
    )
    from .checkpoint import Checkpoint, TensorInfo
    from .checkpoint import open_checkpoint as open
    from .models.load import load

# What needs numpy is imported when it is first used: the program's start does not wait for it.
_LAZY = {
    "FourBit": "arrays",
    "Int8": "arrays",
    "quantize_nf4": "arrays",
    "quantize_fp4": "arrays",
    "quantize_int8": "arrays",
    "dequantize_nf4": "arrays",
    "dequantize_fp4": "arrays",
    "dequantize_int8": "arrays",
    "Checkpoint": "checkpoint",
    "TensorInfo": "checkpoint",
    "open": "checkpoint",
    "load": "models.load",
}
_NAMES = {"open": "open_checkpoint"}

__all__ = [
    "BadInputError",
    "Cancelled",
    "DifferenceError",
    "Error",
    "InputChangedError",
    "NoSpaceError",
    "OutputExistsError",
    "ReadWriteError",
    "UsageError",
    "convert",
    "dequantize",
    "formats",
    "inspect",
    "measure",
    "merge",
    "run",
    *_LAZY,
]


register_when_imported()


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from . import _library

        return _library.version()
    if name not in _LAZY:
        raise AttributeError(f"module 'nibble' has no attribute '{name}'")
    value = getattr(importlib.import_module("." + _LAZY[name], __name__), _NAMES.get(name, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
