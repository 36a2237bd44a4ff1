"""A linear layer with a frozen weight in 4-bit codes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .. import operators
from . import quant_state
from .frozen_linear import FrozenLinear
from .quant_state import QuantState

if TYPE_CHECKING:
    from typing_extensions import Self

_PARTS = ("absmax", "nested_absmax", "nested_quant_map", "nested_offset")
# What a state dict has of a weight, after "weight."; nested_offset is in the text of the quant_state.
_STORED = {"weight.absmax", "weight.quant_map", "weight.nested_absmax", "weight.nested_quant_map"}


def _blocks(weights: int, size: int) -> int:
    return (weights + size - 1) // size


def _check_format(quant_type: str, blocksize: int) -> None:
    if quant_type not in operators.QUANT_TYPES:
        raise ValueError(f"quant_type: is {quant_type!r}, not one of {', '.join(operators.QUANT_TYPES)}")
    if blocksize not in operators.BLOCKSIZES:
        raise ValueError(f"blocksize: is {blocksize}, not one of {', '.join(map(str, operators.BLOCKSIZES))}")


class Weight4bit(FrozenLinear):
    """What `Linear4bit` is besides a `torch.nn.Linear`."""

    _weight_tensors = ("weight", *_PARTS)

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: torch.Tensor | bool | None = True,
        quant_type: str = "nf4",
        blocksize: int = 64,
        compute_dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        *,
        compress_statistics: bool = True,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(in_features, out_features, bias, compute_dtype, device)
        _check_format(quant_type, blocksize)
        n = in_features * out_features
        blocks = _blocks(n, blocksize)

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        packed, nested = zeros(_blocks(n, 2), 1, dtype=torch.uint8), None
        if compress_statistics:
            nested = (zeros(_blocks(blocks, 256)), torch.ops.nibble.quant_map("nested").to(packed.device), zeros())
        self._set(
            packed,
            zeros(blocks, dtype=torch.uint8 if compress_statistics else torch.float32),
            nested,
            quant_type,
            blocksize,
            dtype,
        )

    def _set(
        self,
        weight: torch.Tensor,
        absmax: torch.Tensor,
        nested: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None,
        quant_type: str,
        blocksize: int,
        dtype: torch.dtype,
    ) -> None:
        self.quant_type = quant_type
        self.blocksize = blocksize
        self.weight_dtype = dtype
        self.weight = torch.nn.Parameter(weight, requires_grad=False)
        self.register_buffer("absmax", absmax, persistent=False)
        for name, tensor in zip(_PARTS[1:], nested or (None, None, None), strict=True):
            self.register_buffer(name, tensor, persistent=False)

    @classmethod
    def from_linear(
        cls,
        linear: torch.nn.Linear,
        quant_type: str = "nf4",
        blocksize: int = 64,
        compute_dtype: torch.dtype | None = None,
        *,
        compress_statistics: bool = True,
    ) -> Self:
        """Quantizes the weight of a `torch.nn.Linear`; shares its bias."""
        layer = cls._without_weight(linear.in_features, linear.out_features, linear.bias, compute_dtype)
        layer._quantize(linear.weight.detach(), "weight", quant_type, blocksize, compress_statistics)
        return layer

    @classmethod
    def from_parts(
        cls,
        weight: torch.Tensor,
        absmax: torch.Tensor,
        *,
        shape: tuple[int, int],
        quant_type: str = "nf4",
        blocksize: int = 64,
        nested: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None,
        bias: torch.Tensor | None = None,
        compute_dtype: torch.dtype | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Self:
        """Takes tensors as they are stored, without a copy.

        weight: the codes in any type; absmax: float32, or uint8 with nested = (nested_absmax, nested_quant_map,
        nested_offset); shape: (out_features, in_features); dtype: of the weight that was quantized.
        """
        _check_format(quant_type, blocksize)
        if len(shape) != 2:
            raise ValueError(f"shape: is {list(shape)}, not two dimensions")
        if nested is not None and len(nested) != 3:
            raise ValueError(f"nested: has {len(nested)} tensors, not nested_absmax, nested_quant_map, nested_offset")
        layer = cls._without_weight(shape[1], shape[0], bias, compute_dtype)
        layer._check(weight, absmax, nested, blocksize, "weight")
        layer._set(_bytes(weight), absmax, nested, quant_type, blocksize, dtype)
        return layer

    @classmethod
    def from_state(
        cls, state: dict[str, torch.Tensor], prefix: str = "", *, compute_dtype: torch.dtype | None = None
    ) -> Self:
        """Takes the tensors of a state dict that has bitsandbytes' names after `prefix`, without a copy."""
        own = {key[len(prefix) :]: value for key, value in state.items() if key.startswith(prefix)}
        if "weight" not in own:
            raise ValueError(f"{prefix}weight: is not in the state dict")
        out_features, in_features = quant_state.read(own, prefix + "weight").shape
        layer = cls._without_weight(in_features, out_features, own.pop("bias", None), compute_dtype)
        layer._take_weight(own, prefix + "weight")
        return layer

    def _check(
        self,
        weight: torch.Tensor,
        absmax: torch.Tensor,
        nested: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None,
        blocksize: int,
        name: str,
    ) -> None:
        n = self.in_features * self.out_features
        blocks = _blocks(n, blocksize)
        size = weight.element_size()
        if not _blocks(n, 2) <= weight.numel() * size < _blocks(n, 2) + size:
            raise ValueError(
                f"{name}: has {weight.numel() * size} bytes, and [{self.out_features}, {self.in_features}] weights "
                f"need {_blocks(n, 2)}"
            )
        expected = [("absmax", absmax, blocks, torch.uint8 if nested else torch.float32)]
        if nested:
            sizes = (_blocks(blocks, operators.NESTED_BLOCKSIZE), 256, 1)
            expected += [(key, t, s, torch.float32) for key, t, s in zip(_PARTS[1:], nested, sizes, strict=True)]
        for key, tensor, count, dtype in expected:
            if tensor.dtype != dtype or tensor.numel() != count:
                raise ValueError(f"{name}.{key}: has {tensor.numel()} values of {tensor.dtype}, not {count} of {dtype}")
            if not tensor.is_contiguous():
                raise ValueError(f"{name}.{key}: is not contiguous")
        if not weight.is_contiguous():
            raise ValueError(f"{name}: is not contiguous")

    def _quantize(
        self, weight: torch.Tensor, name: str, quant_type: str, blocksize: int, compress_statistics: bool
    ) -> None:
        if weight.shape != (self.out_features, self.in_features):
            raise ValueError(
                f"{name}: has the shape {list(weight.shape)}, not [{self.out_features}, {self.in_features}]"
            )
        if weight.dtype == torch.float64:
            weight = weight.float()
        if not weight.is_meta and not torch.isfinite(weight).all():
            raise ValueError(f"{name}: has a NaN or an infinity, which codes cannot hold")
        packed, absmax = torch.ops.nibble.quantize_4bit(weight, blocksize, quant_type)
        nested = None
        if compress_statistics:
            # On the CPU, wherever the weight is: it is a hundredth of the work.
            absmax, nested_absmax, offset = torch.ops.nibble.quantize_absmax(absmax if weight.is_meta else absmax.cpu())
            nested = tuple(t.to(weight.device) for t in (nested_absmax, torch.ops.nibble.quant_map("nested"), offset))
            absmax = absmax.to(weight.device)
        self._set(packed, absmax, nested, quant_type, blocksize, weight.dtype)

    def _take_weight(self, tensors: dict[str, torch.Tensor], name: str) -> None:
        weight = tensors["weight"]
        if weight.is_floating_point() and not any(quant_state.is_key(key) for key in tensors):
            self._quantize(weight.detach(), name, self.quant_type, self.blocksize, self.nested_absmax is not None)
            return
        state = quant_state.read(tensors, name)
        if state.shape != (self.out_features, self.in_features):
            raise ValueError(
                f"{name}: its quant_state has the shape {list(state.shape)}, "
                f"not [{self.out_features}, {self.in_features}]"
            )
        needed = ["weight.absmax", "weight.quant_map"]
        if state.nested_offset is not None:
            needed += ["weight.nested_absmax", "weight.nested_quant_map"]
        for key in needed:
            if key not in tensors:
                raise ValueError(f"{name}: is not complete, {key.removeprefix('weight.')} is missing")
        quant_map = tensors["weight.quant_map"]
        if not quant_map.is_meta and not torch.equal(
            quant_map.float().cpu(), torch.ops.nibble.quant_map(state.quant_type)
        ):
            raise ValueError(f"{name}.quant_map: has other values than {state.quant_type}, which nothing decodes")
        nested = None
        if state.nested_offset is not None:
            offset = torch.tensor(state.nested_offset, dtype=torch.float32, device=weight.device)
            nested = (tensors["weight.nested_absmax"], tensors["weight.nested_quant_map"], offset)
        self._check(weight, tensors["weight.absmax"], nested, state.blocksize, name)
        self._set(_bytes(weight), tensors["weight.absmax"], nested, state.quant_type, state.blocksize, state.dtype)

    def _is_of_weight(self, name: str) -> bool:
        return name == "weight" or name in _STORED or quant_state.is_key(name)

    def quant_state(self) -> QuantState:
        """What the JSON text in a state dict says of the weight."""
        nested = self.nested_offset
        offset = None if nested is None else 0.0 if nested.is_meta else nested.item()
        shape = (self.out_features, self.in_features)
        return QuantState(self.quant_type, self.blocksize, self.weight_dtype, shape, offset)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        state = self.quant_state()
        tensors = {"weight.absmax": self.absmax, "weight.quant_map": torch.ops.nibble.quant_map(self.quant_type)}
        if self.nested_absmax is not None:
            tensors["weight.nested_absmax"] = self.nested_absmax
            # Each layer has a map of its own, because safetensors refuses tensors that share memory.
            tensors["weight.nested_quant_map"] = self.nested_quant_map.clone()
        tensors[state.key] = state.to_tensor()
        for name, tensor in tensors.items():
            destination[prefix + name] = tensor.to(self.weight.device)

    def dequantize(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        return torch.ops.nibble.dequantize_4bit(
            self.weight,
            self.absmax,
            self.nested_absmax,
            self.nested_quant_map,
            self.nested_offset,
            [self.out_features, self.in_features],
            self.blocksize,
            self.quant_type,
            dtype or self.weight_dtype,
        )

    def dequantize_rows(self, rows: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The rows of these numbers, [rows.numel(), in_features]. No other row is decoded. Raises IndexError if there is
        no such row."""
        k, size = self.in_features, self.blocksize
        # What follows would take any number, and indexing takes -1. index_select() refuses both; the zeros that it selects
        # from have no memory but that of one.
        zeros = torch.zeros(1, dtype=torch.int64, device=rows.device).expand(self.out_features)
        rows = rows + zeros.index_select(0, rows)
        first = rows * k  # of the weight's elements; a row may begin and end within a block
        block = first // size
        count = (k + size - 2) // size + 1  # blocks that a row can touch
        blocks = block[:, None] + torch.arange(count, device=rows.device)
        blocks = blocks.clamp_(max=self.absmax.numel() - 1)
        codes = (block * (size // 2))[:, None] + torch.arange(count * size // 2, device=rows.device)
        packed = self.weight.reshape(-1)[codes.clamp_(max=self.weight.numel() - 1)]
        absmax = self.absmax.reshape(-1)[blocks]
        if self.nested_absmax is not None:
            nested = self.nested_absmax.reshape(-1)[blocks // operators.NESTED_BLOCKSIZE]
            absmax = self.nested_quant_map.reshape(-1)[absmax.int()] * nested + self.nested_offset
        shape = [rows.numel(), count * size]
        values = torch.ops.nibble.dequantize_4bit(
            packed.reshape(-1),
            absmax.reshape(-1),
            None,
            None,
            None,
            shape,
            size,
            self.quant_type,
            dtype or self.weight_dtype,
        )
        return values.gather(1, (first % size)[:, None] + torch.arange(k, device=rows.device))

    def _multiply_by_weight(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.nibble.linear_4bit_dx(
            x,
            self.weight,
            self.absmax,
            self.nested_absmax,
            self.nested_quant_map,
            self.nested_offset,
            self.in_features,
            self.blocksize,
            self.quant_type,
        )

    def _multiply(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return torch.ops.nibble.linear_4bit(
            x,
            self.weight,
            self.absmax,
            self.nested_absmax,
            self.nested_quant_map,
            self.nested_offset,
            bias,
            self.out_features,
            self.blocksize,
            self.quant_type,
        )

    def extra_repr(self) -> str:
        nested = ", compress_statistics=True" if self.nested_absmax is not None else ""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, "
            f"quant_type={self.quant_type}, blocksize={self.blocksize}{nested}, compute_dtype={self.compute_dtype}"
        )


class Linear4bit(Weight4bit, torch.nn.Linear):
    """y = x W^T + bias, W in NF4 or FP4 as bitsandbytes stores it (docs/torch.md).

    `weight` has the codes, uint8 [ceil(n k / 2), 1]. `absmax` is float32, or uint8 with `nested_absmax`,
    `nested_quant_map` and `nested_offset`; these are buffers. A new layer has zeros for its weight until a state dict
    is loaded; `from_linear()`, `from_state()` and `from_parts()` make one with a weight.

    compute_dtype: what x and W are rounded to before they are multiplied, and the result has the type of x. None: the
    type of x, or of autocast.
    """


def _bytes(weight: torch.Tensor) -> torch.Tensor:
    """The codes as uint8 [bytes, 1]. bitsandbytes may store them in another type, whose values mean nothing."""
    return weight.detach().reshape(-1).view(torch.uint8).reshape(-1, 1)
