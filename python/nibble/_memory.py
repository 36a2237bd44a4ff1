"""Where the elements of numpy arrays and torch tensors are, for libraries that take pointers."""

from __future__ import annotations

import ctypes
import math
import sys
from typing import Any

import numpy as np

from . import _library
from .errors import UsageError

FLOAT_TYPES = {"float32": 0, "float16": 1, "bfloat16": 2}  # nibble_dtype
CODEBOOKS = {"nf4": 0, "fp4": 1}  # nibble_codebook
NESTED_BLOCKSIZE = 256  # absmax per nested absmax
NESTED_CODEBOOK = 256  # values

_NOTHING = ctypes.c_byte()  # where an empty tensor is: torch has no memory for it, and null stands for no array


class Memory:
    """An array whose elements follow each other."""

    def __init__(self, value: Any, name: str):
        self.value, self.name = value, name

    value: Any
    dtype: Any  # its name
    shape: tuple[int, ...]
    pointer: int
    element_bytes: int
    device = "cpu"

    def empty(self, shape: tuple[int, ...], dtype: str) -> Memory:
        """A new array of the same kind."""
        raise NotImplementedError

    def fill(self, values: Any) -> None:
        raise NotImplementedError

    def zeros(self, shape: tuple[int, ...], dtype: str) -> Memory:
        memory = self.empty(shape, dtype)
        memory.value[...] = 0
        return memory

    @property
    def dtype_number(self) -> int:
        return FLOAT_TYPES[self.dtype]

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.element_bytes

    def array(self) -> _library.Array:
        return _library.Array(self.pointer, self.bytes)


class NumpyMemory(Memory):
    def __init__(self, value: np.ndarray, name: str):
        if not value.dtype.isnative:
            raise UsageError(f"{name} is of {value.dtype.name} in the byte order of other processors")
        super().__init__(np.require(value, requirements=["C", "A"]), name)  # a copy if it has gaps or is not aligned
        self.dtype, self.shape = self.value.dtype.name, self.value.shape
        self.pointer, self.element_bytes = self.value.ctypes.data, self.value.dtype.itemsize

    def empty(self, shape: tuple[int, ...], dtype: str) -> Memory:
        if dtype == "bfloat16":
            try:
                import ml_dtypes
            except ImportError:
                raise UsageError("numpy has bfloat16 only if ml_dtypes is installed") from None
            return NumpyMemory(np.empty(shape, ml_dtypes.bfloat16), self.name)
        return NumpyMemory(np.empty(shape, dtype), self.name)


class TorchMemory(Memory):
    def __init__(self, value: Any, name: str):
        if value.device.type not in ("cpu", "cuda"):
            raise UsageError(f"{name} is on {value.device}, neither on the CPU nor on a CUDA device")
        if value.layout != sys.modules["torch"].strided:
            raise UsageError(f"{name} has the layout {value.layout}, not torch.strided")
        if value.untyped_storage().device.type == "meta":
            raise UsageError(f"{name} has no memory: it stands for a tensor while torch traces")
        # The elements of z.conj().imag are those of z.imag, whose signs torch changes when it reads them.
        super().__init__(value.detach().resolve_neg().contiguous(), name)
        self.dtype, self.shape = str(self.value.dtype).removeprefix("torch."), tuple(self.value.shape)
        self.pointer = self.value.data_ptr() if self.value.numel() > 0 else ctypes.addressof(_NOTHING)
        self.element_bytes = self.value.element_size()
        self.device = str(self.value.device)

    def empty(self, shape: tuple[int, ...], dtype: str) -> Memory:
        dtype = getattr(sys.modules["torch"], dtype)
        return TorchMemory(self.value.new_empty(shape, dtype=dtype), self.name)

    def fill(self, values: Any) -> None:
        """`values`: a float32 array of ctypes in ordinary memory."""
        self.value.copy_(sys.modules["torch"].frombuffer(values, dtype=self.value.dtype))


def memory_of(value: Any, name: str, dtype: str | None = None, like: Memory | None = None) -> Memory:
    """The memory of a numpy array or torch tensor with elements of `dtype`, or of any floating-point type that weights
    may have. `like`: it must be of the same kind."""
    torch = sys.modules.get("torch")  # whoever has a tensor has imported it
    if isinstance(value, np.ndarray):
        memory: Memory = NumpyMemory(value, name)
    elif torch is not None and isinstance(value, torch.Tensor):
        memory = TorchMemory(value, name)
    else:
        raise UsageError(f"{name} is of type {type(value).__name__}, neither a numpy array nor a torch tensor")
    if dtype is not None and memory.dtype != dtype:
        raise UsageError(f"{name} is of {memory.dtype}, not of {dtype}")
    if dtype is None and memory.dtype not in FLOAT_TYPES:
        raise UsageError(f"{name} is of {memory.dtype}, not of float32, float16 or bfloat16")
    if like is not None:
        if type(memory) is not type(like):
            raise UsageError(f"{name} and {like.name} are not both numpy arrays or both torch tensors")
        if memory.device != like.device:
            raise UsageError(f"{name} is on {memory.device}, and {like.name} on {like.device}")
    return memory
