"""A linear layer with a frozen weight in 8-bit codes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .. import operators  # noqa: F401: loads the operators
from .frozen_linear import FrozenLinear

if TYPE_CHECKING:
    from typing_extensions import Self


class WeightInt8(FrozenLinear):
    """What `LinearInt8` is besides a `torch.nn.Linear`."""

    _weight_tensors = ("weight", "SCB")

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: torch.Tensor | bool | None = True,
        compute_dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        *,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(in_features, out_features, bias, compute_dtype, device)
        weight = torch.zeros(out_features, in_features, dtype=torch.int8, device=device)
        self._set(weight, torch.zeros(out_features, device=device), dtype)

    def _set(self, weight: torch.Tensor, absmax: torch.Tensor, dtype: torch.dtype) -> None:
        self.weight_dtype = dtype
        self.weight = torch.nn.Parameter(weight, requires_grad=False)
        self.register_buffer("SCB", absmax)

    @classmethod
    def from_linear(cls, linear: torch.nn.Linear, compute_dtype: torch.dtype | None = None) -> Self:
        """Quantizes the weight of a `torch.nn.Linear`; shares its bias."""
        layer = cls._without_weight(linear.in_features, linear.out_features, linear.bias, compute_dtype)
        layer._take_weight({"weight": linear.weight.detach()}, "weight")
        return layer

    @classmethod
    def from_parts(
        cls,
        weight: torch.Tensor,
        absmax: torch.Tensor,
        *,
        bias: torch.Tensor | None = None,
        compute_dtype: torch.dtype | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Self:
        """Takes int8 codes [out_features, in_features] and their absmax without a copy."""
        if weight.dim() != 2:
            raise ValueError(f"weight: has the shape {list(weight.shape)}, not two dimensions")
        layer = cls._without_weight(weight.shape[1], weight.shape[0], bias, compute_dtype)
        layer._take_weight({"weight": weight, "SCB": absmax}, "weight", dtype)
        return layer

    @classmethod
    def from_state(
        cls, state: dict[str, torch.Tensor], prefix: str = "", *, compute_dtype: torch.dtype | None = None
    ) -> Self:
        """Takes the tensors of a state dict that has bitsandbytes' names after `prefix`, without a copy."""
        own = {key[len(prefix) :]: value for key, value in state.items() if key.startswith(prefix)}
        for key in ("weight", "SCB"):
            if key not in own:
                raise ValueError(f"{prefix}{key}: is not in the state dict")
        weight = own["weight"]
        if weight.dim() != 2:
            raise ValueError(f"{prefix}weight: has the shape {list(weight.shape)}, not two dimensions")
        layer = cls._without_weight(weight.shape[1], weight.shape[0], own.pop("bias", None), compute_dtype)
        layer._take_weight(own, prefix + "weight")
        return layer

    def _take_weight(self, tensors: dict[str, torch.Tensor], name: str, dtype: torch.dtype | None = None) -> None:
        dtype = dtype or getattr(self, "weight_dtype", torch.float32)
        weight, absmax = tensors["weight"], tensors.get("SCB")
        if weight.shape != (self.out_features, self.in_features):
            raise ValueError(
                f"{name}: has the shape {list(weight.shape)}, not [{self.out_features}, {self.in_features}]"
            )
        weight_format = tensors.get("weight_format")
        if weight_format is not None and weight_format.nbytes != 1:
            raise ValueError(f"{name}: its weight_format has {weight_format.nbytes} bytes, not 1")
        if weight_format is not None and not weight_format.is_meta and weight_format.item() != 0:
            raise ValueError(f"{name}: has the weight_format {weight_format.item()}, not 0, which is rows")
        if weight.is_floating_point() and absmax is None:
            dtype = weight.dtype
            weight = weight.float() if dtype == torch.float64 else weight
            if not weight.is_meta and not torch.isfinite(weight.half()).all():
                raise ValueError(
                    f"{name}: has a NaN, an infinity or a magnitude of 65520 or more, which fp16 cannot hold"
                )
            weight, absmax = torch.ops.nibble.quantize_int8(weight)
        if weight.dtype != torch.int8:
            raise ValueError(f"{name}: is {weight.dtype}, not torch.int8")
        if absmax is None:
            raise ValueError(f"{name}: is not complete, SCB is missing")
        if absmax.dtype != torch.float32 or absmax.numel() != self.out_features:
            raise ValueError(
                f"{name}: its SCB has {absmax.numel()} values of {absmax.dtype}, not {self.out_features} of torch.float32"
            )
        self._set(weight.detach().contiguous(), absmax.detach().reshape(-1).contiguous(), dtype)

    def _is_of_weight(self, name: str) -> bool:
        return name in ("weight", "SCB", "weight_format")

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "weight_format"] = torch.tensor(0, dtype=torch.uint8)  # rows

    def dequantize(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        return torch.ops.nibble.dequantize_int8(self.weight, self.SCB, dtype or self.weight_dtype)

    def dequantize_rows(self, rows: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """As Weight4bit.dequantize_rows()."""
        codes, absmax = (tensor.index_select(0, rows) for tensor in (self.weight, self.SCB))  # which refuses -1
        return torch.ops.nibble.dequantize_int8(codes, absmax, dtype or self.weight_dtype)

    def _multiply_by_weight(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.nibble.linear_int8_dx(x, self.weight, self.SCB)

    def _multiply(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return torch.ops.nibble.linear_int8(x, self.weight, self.SCB, bias)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, "
            f"compute_dtype={self.compute_dtype}"
        )


class LinearInt8(WeightInt8, torch.nn.Linear):
    """y = x W^T + bias, W in LLM.int8() codes with an absmax per row, as bitsandbytes stores it (docs/torch.md).

    `weight` has the codes, int8 [out_features, in_features], and `SCB` the absmax, float32 [out_features]. x is not
    quantized. A new layer has zeros for its weight until a state dict is loaded; `from_linear()`, `from_state()` and
    `from_parts()` make one with a weight. compute_dtype is as for `Linear4bit`.
    """
