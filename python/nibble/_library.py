"""libnibble.so through ctypes: the structs and functions of include/nibble/c_api.h, loaded when the first is needed."""

from __future__ import annotations

import ctypes
import functools
import os
import pathlib
from ctypes import POINTER, byref, c_char_p, c_int, c_int32, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any

from .errors import Error, UsageError, error_of

API_VERSION = 1  # NIBBLE_C_API_VERSION
MAX_DIMENSIONS = 64


class Struct(ctypes.Structure):
    """A struct that begins with its size, if it has a member struct_bytes."""

    def __init__(self, **members: Any) -> None:
        super().__init__(**members)
        if hasattr(self, "struct_bytes"):
            self.struct_bytes = ctypes.sizeof(self)


class Array(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("bytes", c_uint64)]


class FourBitArrays(Struct):
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("codebook", c_int32),
        ("blocksize", c_uint32),
        ("elements", c_uint64),
        ("packed", Array),
        ("absmax", Array),
        ("absmax_codes", Array),
        ("nested_absmax", Array),
        ("nested_codebook", Array),
        ("nested_offset", Array),
    ]


class Int8Arrays(Struct):
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("rows", c_uint64),
        ("columns", c_uint64),
        ("codes", Array),
        ("absmax", Array),
    ]


class Tensor(Struct):
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("name", c_void_p),  # with its length, because it may have null bytes
        ("name_bytes", c_uint64),
        ("dtype", c_char_p),
        ("bits", c_uint32),
        ("dimensions", c_uint32),
        ("shape", c_uint64 * MAX_DIMENSIONS),
        ("file", c_char_p),
        ("offset", c_uint64),
        ("bytes", c_uint64),
    ]


ProgressFunction = ctypes.CFUNCTYPE(c_int, c_void_p, c_char_p, c_uint64, c_uint64)
NoteFunction = ctypes.CFUNCTYPE(None, c_void_p, c_char_p)


class Listener(Struct):
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("user", c_void_p),
        ("progress", ProgressFunction),
        ("note", NoteFunction),
        ("cancel", POINTER(c_int)),
    ]


# Functions that return NIBBLE_OK or why not.
CHECKED = {
    "nibble_cpu_targets": [POINTER(c_void_p), POINTER(c_void_p)],
    "nibble_cpu_extensions": [POINTER(c_void_p)],
    "nibble_command": [c_int, POINTER(c_char_p), POINTER(Listener), POINTER(c_void_p)],
    "nibble_list_commands": [POINTER(c_void_p)],
    "nibble_cpu_quantize_4bit": [Array, c_int32, POINTER(FourBitArrays), c_uint32, POINTER(c_uint64)],
    "nibble_cpu_dequantize_4bit": [POINTER(FourBitArrays), Array, c_int32, c_uint32],
    "nibble_cpu_quantize_int8": [Array, c_int32, POINTER(Int8Arrays), c_uint32, POINTER(c_uint64)],
    "nibble_cpu_dequantize_int8": [POINTER(Int8Arrays), Array, c_int32, c_uint32],
    "nibble_checkpoint_open": [c_char_p, c_uint64, POINTER(c_void_p)],
    "nibble_checkpoint_tensor": [c_void_p, c_uint64, POINTER(Tensor)],
}
OTHERS = {
    "nibble_c_api_version": (c_int, []),
    "nibble_version": (c_char_p, []),
    "nibble_error_message": (c_char_p, []),
    "nibble_free": (None, [c_void_p]),
    "nibble_checkpoint_count": (c_uint64, [c_void_p]),
    "nibble_checkpoint_close": (None, [c_void_p]),
}


def folders() -> list[pathlib.Path]:
    """Where the libraries and the program may be: in the wheel, or in a checkout what the preset `release` has built."""
    package = pathlib.Path(__file__).resolve().parent
    build = package.parent.parent / "build" / "release"
    return [package / "lib", package / "bin", build / "python", build / "python" / "torch", build / "kernels", build]


def find(name: str, variable: str) -> pathlib.Path | None:
    """The path of a library or program: what the environment variable says, or the first folder that has it."""
    chosen = os.environ.get(variable)
    if chosen:
        return pathlib.Path(chosen)
    return next((folder / name for folder in folders() if (folder / name).is_file()), None)


@functools.cache
def library() -> ctypes.CDLL:
    """libnibble.so. NIBBLE_LIBRARY names another file. Raises nibble.Error if it cannot be loaded."""
    path = find("libnibble.so", "NIBBLE_LIBRARY")
    if path is None:
        raise Error(f"{folders()[0]}: has no libnibble.so: install nibble again, or set NIBBLE_LIBRARY to its path")
    try:
        loaded = ctypes.CDLL(str(path))
        loaded.nibble_c_api_version.restype = c_int
        version = loaded.nibble_c_api_version()
    except (OSError, AttributeError) as error:
        raise Error(f"{path} cannot be loaded: {error}") from error
    if version != API_VERSION:
        raise Error(f"{path}: has version {version} of the C interface, this package needs {API_VERSION}")
    for name, arguments in CHECKED.items():
        function = getattr(loaded, name)
        function.argtypes, function.restype = arguments, c_int
    for name, (result, arguments) in OTHERS.items():
        function = getattr(loaded, name)
        function.argtypes, function.restype = arguments, result
    return loaded


def message() -> str:
    """What the last failed call of this thread said."""
    return str(library().nibble_error_message(), errors="replace")


def check(code: int) -> None:
    """Raises what a function of the library returned, unless that is 0."""
    if code != 0:
        raise error_of(code, message())


def bytes_of(text: str | os.PathLike[str]) -> bytes:
    """A path or an option as C takes it, which would end it at a null byte."""
    encoded = os.fsencode(text)
    if b"\0" in encoded:
        raise UsageError(f"{os.fsdecode(encoded)!r} has a null byte")
    return encoded


def take_text(pointer: c_void_p) -> str:
    """The text behind a pointer that the library has allocated, which is freed; "" for null."""
    if pointer.value is None:
        return ""
    try:
        return ctypes.string_at(pointer.value).decode(errors="replace")
    finally:
        library().nibble_free(pointer)


def version() -> str:
    """The version of libnibble: "0.1.0"."""
    return str(library().nibble_version(), "ascii")


def cpu_targets() -> tuple[list[str], str]:
    """The CPU targets of libnibble on this processor, best first, and the one in use."""
    targets, in_use = c_void_p(), c_void_p()
    check(library().nibble_cpu_targets(byref(targets), byref(in_use)))
    return take_text(targets).split(), take_text(in_use)


def cpu_extensions() -> list[str]:
    """The instructions that libnibble uses besides those of the CPU target: "AVX512_VNNI", "AMX_BF16", ..."""
    extensions = c_void_p()
    check(library().nibble_cpu_extensions(byref(extensions)))
    return take_text(extensions).split()
