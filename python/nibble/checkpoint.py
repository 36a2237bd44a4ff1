"""The stored tensors of a checkpoint as arrays, without a copy: its files are mapped, and pages are read when they are
used.

    with nibble.open("Llama-3.1-8B-nf4") as tensors:
        for name, array in tensors.items():
            print(name, array.dtype, array.shape)
        weight = tensors.torch("model.layers.0.mlp.down_proj.weight")

Quantized weights come part by part, as they are stored.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import operator
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _library
from .errors import InputChangedError, UsageError, system_error

if TYPE_CHECKING:
    import torch

MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Python has a name for it from 3.11 on

NUMPY_TYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "C64": "complex64",
    "F64": "float64",
    "I64": "int64",
    "U64": "uint64",
}
# Types that numpy does not have: the name in ml_dtypes, and the integers whose bits stand in where it is not installed.
EXTENSION_TYPES = {
    "BF16": ("bfloat16", "uint16"),
    "F8_E4M3": ("float8_e4m3fn", "uint8"),
    "F8_E5M2": ("float8_e5m2", "uint8"),
    "F8_E8M0": ("float8_e8m0fnu", "uint8"),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", "uint8"),
    "F8_E5M2FNUZ": ("float8_e5m2fnuz", "uint8"),
}
TORCH_TYPES = {
    "BOOL": "bool",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
}


@dataclass(frozen=True)
class TensorInfo:
    """A tensor as a header describes it."""

    name: str
    dtype: str
    """As in a safetensors header: "F32", "BF16", "U8"."""
    bits: int
    """Of an element."""
    shape: tuple[int, ...]
    file: str
    offset: int
    """In the file."""
    bytes: int


def numpy_type(dtype: str) -> np.dtype[Any]:
    """The type of numpy for a safetensors type. BF16 and the 8-bit floating-point types are those of ml_dtypes if that
    is installed, else unsigned integers with their bits. Types of less than 8 bits are bytes."""
    if dtype in NUMPY_TYPES:
        return np.dtype(NUMPY_TYPES[dtype])
    name, bits = EXTENSION_TYPES.get(dtype, ("", "uint8"))
    try:
        import ml_dtypes

        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    except (ImportError, AttributeError):
        found = np.dtype(bits)
    return found


@dataclass(frozen=True)
class _OpenedFile:
    """A file whose header was read."""

    path: str
    """Absolute."""
    identity: tuple[int, ...]


class Checkpoint(Mapping[str, np.ndarray]):
    """A mapping from names to read-only arrays, in the order of the files. Arrays stay valid after close().

    Raises InputChangedError for a tensor of a file that was changed or replaced between opening and the first use.
    A file must not become shorter while its arrays are used: reading beyond its end then ends the process, as for every
    mapped file.
    """

    def __init__(self, path: str | os.PathLike[str], max_memory: int = 0):
        library = _library.library()
        encoded = _library.bytes_of(path)
        try:
            limit = -1 if isinstance(max_memory, bool) else operator.index(max_memory)
        except TypeError:
            limit = -1
        if not 0 <= limit < 2**64:
            raise UsageError(f"max_memory is {max_memory!r}, not a number of bytes from 0 to {2**64 - 1}")
        self._maps: dict[str, mmap.mmap] = {}
        before = _identities(path)
        handle = ctypes.c_void_p()
        _library.check(library.nibble_checkpoint_open(encoded, limit, ctypes.byref(handle)))
        try:
            self._tensors = {}
            for index in range(library.nibble_checkpoint_count(handle)):
                tensor = _library.Tensor()
                _library.check(library.nibble_checkpoint_tensor(handle, index, ctypes.byref(tensor)))
                name = ctypes.string_at(tensor.name, tensor.name_bytes).decode(errors="surrogateescape")
                self._tensors[name] = TensorInfo(
                    name=name,
                    dtype=tensor.dtype.decode(),
                    bits=tensor.bits,
                    shape=tuple(tensor.shape[: tensor.dimensions]),
                    file=os.fsdecode(tensor.file),
                    offset=tensor.offset,
                    bytes=tensor.bytes,
                )
        finally:
            library.nibble_checkpoint_close(handle)
        self._files = {file: _opened(file, before) for file in {info.file for info in self._tensors.values()}}

    def __getitem__(self, name: str) -> np.ndarray:
        array = self._array(self.info(name))
        array.flags.writeable = False
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def info(self, name: str) -> TensorInfo:
        """Type, shape and place of a tensor. Raises KeyError if there is none of this name."""
        return self._tensors[name]

    def torch(self, name: str) -> torch.Tensor:
        """A tensor as torch has it. Its memory is that of the mapped file: what is written to it stays in this process,
        and the file keeps its bytes."""
        import torch

        info = self.info(name)
        wanted = TORCH_TYPES.get(info.dtype, NUMPY_TYPES.get(info.dtype, ""))
        dtype = getattr(torch, wanted, None)
        if dtype is None:
            raise UsageError(f"{info.file}: tensor '{name}': torch has no type for {info.dtype}")
        if info.bytes == 0:
            tensor: torch.Tensor = _empty(info, lambda: torch.empty(info.shape, dtype=dtype))
            return tensor
        array = self._bytes(info)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            flat = torch.from_numpy(array)
        if info.offset * 8 % info.bits:
            return flat.clone().view(dtype).reshape(info.shape)  # torch has no tensors that are not aligned
        return flat.view(dtype).reshape(info.shape)

    def close(self) -> None:
        """Forgets the maps of files. Each stays as long as an array of it is used."""
        self._maps.clear()

    def _bytes(self, info: TensorInfo) -> np.ndarray:
        return np.frombuffer(self._map(info), dtype=np.uint8, count=info.bytes, offset=info.offset)

    def _array(self, info: TensorInfo) -> np.ndarray:
        dtype = numpy_type(info.dtype)
        whole = math.prod(info.shape) * dtype.itemsize == info.bytes
        shape = info.shape if whole else (info.bytes // dtype.itemsize,)
        if info.bytes == 0:
            array: np.ndarray = _empty(info, lambda: np.empty(shape, dtype))
            return array
        return self._bytes(info).view(dtype).reshape(shape)

    # Private pages that may be written: torch cannot be told that memory is read-only. Not reserved, because a file may
    # be larger than memory.
    def _map(self, info: TensorInfo) -> mmap.mmap:
        if info.file not in self._maps:
            opened = self._files[info.file]
            try:
                file = os.open(opened.path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    if _identity(os.fstat(file)) != opened.identity:
                        raise _changed(info.file)
                    mapped = mmap.mmap(
                        file,
                        0,
                        flags=mmap.MAP_PRIVATE | MAP_NORESERVE,
                        prot=mmap.PROT_READ | mmap.PROT_WRITE,
                    )
                finally:
                    os.close(file)
            except (OSError, ValueError) as error:
                raise system_error(f"{info.file}: cannot be mapped: {error}", error) from error
            self._maps.setdefault(info.file, mapped)  # another thread may have been faster: all share one map
        return self._maps[info.file]


def _identity(status: os.stat_result) -> tuple[int, ...]:
    """What changes when a file is replaced or written."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _identities(path: str | os.PathLike[str]) -> set[tuple[int, ...]]:
    """Of the files that opening this path may read. Empty if it is the name of a model in the hub's cache, whose files
    nothing changes."""
    found: set[tuple[int, ...]] = set()
    if not os.path.exists(path):
        return found  # if it is no such name either, the library says so
    with contextlib.suppress(OSError):
        folder = path if os.path.isdir(path) else os.path.dirname(path) or os.curdir  # an index names files beside it
        with os.scandir(os.fspath(folder)) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    found.add(_identity(entry.stat()))
    return found


def _opened(file: str, before: set[tuple[int, ...]]) -> _OpenedFile:
    """A file whose header was just read. Raises InputChangedError if it is none of those that were there before."""
    try:
        identity = _identity(os.stat(file))
    except OSError as error:
        raise system_error(f"{file}: {error.strerror}", error) from error
    if before and identity not in before:
        raise _changed(file)
    return _OpenedFile(file if os.path.isabs(file) else os.path.join(os.getcwd(), file), identity)


def _changed(file: str) -> InputChangedError:
    return InputChangedError(f"{file}: changed after it was opened")


def _empty(info: TensorInfo, make: Callable[[], Any]) -> Any:
    """An array without elements, some of whose sizes a library may not be able to count."""
    try:
        return make()
    except (ValueError, TypeError, RuntimeError, OverflowError):
        raise UsageError(
            f"{info.file}: tensor '{info.name}': has the shape {list(info.shape)}, which arrays here cannot have"
        ) from None


def open_checkpoint(path: str | os.PathLike[str], *, max_memory: int = 0) -> Checkpoint:
    """Opens a file (.safetensors), a model directory, or a model in the local Hugging Face cache, plain or quantized.

    Headers are read and checked. Opening takes at most `max_memory` bytes; 0 stands for 1e9.
    """
    return Checkpoint(path, max_memory)
