"""What layers with a frozen quantized weight share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from typing_extensions import Self

_AUTOCAST_DEVICES = ("cpu", "cuda")  # of those that the operators run on; torch refuses to be asked about "meta"


class FrozenLinear(torch.nn.Module):
    """A linear layer whose weight is quantized and frozen; the bias is a parameter like any other.

    `Linear4bit` and `LinearInt8` are `torch.nn.Linear`, too, so that peft and others that look for linear layers find
    them. Their bases `Weight4bit` and `WeightInt8` are not: they are parts of a `QuantizedWeight`, which peft must not
    replace.
    """

    # The tensors of the weight: the parameter and buffers that must keep their types.
    _weight_tensors: tuple[str, ...] = ("weight",)

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: torch.Tensor | bool | None,
        compute_dtype: torch.dtype | None,
        device: torch.device | str | None,
    ) -> None:
        torch.nn.Module.__init__(self)
        for name, value in (("in_features", in_features), ("out_features", out_features)):
            if value < 1:
                raise ValueError(f"{name}: is {value}, at least 1 is needed")
        if compute_dtype not in (None, torch.float32, torch.bfloat16, torch.float16, torch.float64):
            raise ValueError(f"compute_dtype: is {compute_dtype}, not a floating-point type of torch, or None")
        self.in_features = in_features
        self.out_features = out_features
        self.compute_dtype = compute_dtype
        if isinstance(bias, bool):
            bias = torch.zeros(out_features, device=device) if bias else None
        if bias is not None and bias.shape != (out_features,):
            raise ValueError(f"bias: has the shape {list(bias.shape)}, not [{out_features}]")
        self.bias = bias if bias is None or isinstance(bias, torch.nn.Parameter) else torch.nn.Parameter(bias)

    @classmethod
    def _without_weight(
        cls, in_features: int, out_features: int, bias: torch.Tensor | bool | None, compute_dtype: torch.dtype | None
    ) -> Self:
        """A layer whose weight is still to be set."""
        layer = cls.__new__(cls)
        FrozenLinear.__init__(layer, in_features, out_features, False if bias is None else bias, compute_dtype, None)
        return layer

    def reset_parameters(self) -> None:
        """Does nothing: the weight is frozen."""

    @property
    def W_q(self) -> torch.Tensor:  # noqa: N802
        """The codes. peft asks for this name before it calls `dequantize()`, as DoRA needs."""
        return self.weight

    def dequantize(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The weight [out_features, in_features], in `dtype` or in that of the weight that was quantized."""
        raise NotImplementedError

    def _multiply(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        raise NotImplementedError

    def _multiply_by_weight(self, x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dim() == 0 or x.shape[-1] != self.in_features:
            # The operator for 4 bits takes the columns of x for those of the weight, whose codes have no shape.
            raise RuntimeError(f"x: has the shape {list(x.shape)}, and the weight needs {self.in_features} columns")
        dtype, result_dtype = self._types(x)
        bias = self.bias
        return self._multiply(x.to(dtype), None if bias is None else bias.to(dtype)).to(result_dtype)

    def multiply_by_weight(self, x: torch.Tensor) -> torch.Tensor:
        """x W, for x [..., out_features], in the types of forward()."""
        dtype, result_dtype = self._types(x)
        return self._multiply_by_weight(x.to(dtype)).to(result_dtype)

    def _types(self, x: torch.Tensor) -> tuple[torch.dtype, torch.dtype]:
        """What is computed in, and what the result has. A compute_dtype works as in bitsandbytes: the result has the type
        of x. Without one, the type of x or of autocast is computed in, as torch.nn.Linear does."""
        if not x.is_floating_point():
            # Some models cast x to the type of a layer's weight, which is that of the codes here.
            raise RuntimeError(f"x: is {x.dtype}, not a floating-point type; weight.dtype is the type of codes")
        result_dtype = x.dtype
        dtype = self.compute_dtype
        if dtype is None:
            dtype = result_dtype
            device = x.device.type
            # Not torch.amp.is_autocast_available(), which torch.compile of torch 2.11 cannot trace.
            if device in _AUTOCAST_DEVICES and torch.is_autocast_enabled(device) and dtype != torch.float64:
                dtype = result_dtype = torch.get_autocast_dtype(device)
        return dtype, result_dtype

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        # .to(dtype), .half() and others are for the bias alone: codes and absmax keep their types.
        frozen = {id(getattr(self, name)) for name in self._weight_tensors}

        def keep_type(tensor: torch.Tensor) -> torch.Tensor:
            moved = fn(tensor)
            if id(tensor) in frozen and moved.dtype != tensor.dtype:
                return tensor.to(moved.device)
            return moved

        return super()._apply(keep_type, recurse)

    # State dicts. A subclass takes the tensors of its weight; the rest is as in torch.nn.Module.

    def _take_weight(self, tensors: dict[str, torch.Tensor], name: str) -> None:
        """Takes the weight from `tensors`, a dict by names without the prefix, whose tensors it may keep.

        `name` is for messages. Raises ValueError with one sentence if it is not a weight for this layer.
        """
        raise NotImplementedError

    def _is_of_weight(self, name: str) -> bool:
        return name in self._weight_tensors

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        for hook in self._load_state_dict_pre_hooks.values():
            hook(state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
        own = {key[len(prefix) :]: value for key, value in state_dict.items() if key.startswith(prefix)}
        assign = local_metadata.get("assign_to_params_buffers", False)

        def taken(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
            if like.is_meta and not assign:
                return tensor  # there is nothing to copy to; torch.nn.Module warns in this case
            return tensor if assign else tensor.to(like.device, copy=True)

        bias = own.pop("bias", None)
        if self.bias is not None:
            if bias is None:
                missing_keys.append(prefix + "bias")
            elif bias.shape != self.bias.shape:
                error_msgs.append(f"{prefix}bias: has the shape {list(bias.shape)}, not {list(self.bias.shape)}")
            elif assign:
                self.bias = torch.nn.Parameter(bias.detach(), requires_grad=self.bias.requires_grad)
            else:
                with torch.no_grad():
                    self.bias.copy_(bias)
        elif bias is not None and strict:
            unexpected_keys.append(prefix + "bias")

        weight = {name: taken(own.pop(name), self.weight) for name in list(own) if self._is_of_weight(name)}
        if "weight" not in weight:
            missing_keys.append(prefix + "weight")
        else:
            try:
                self._take_weight(weight, prefix + "weight")
            except ValueError as error:
                error_msgs.append(str(error))
        if strict:
            unexpected_keys.extend(prefix + name for name in own)
