"""Quantized weights where a module of another library holds a tensor: embeddings, fused experts, routers.

Such modules call `F.linear(x, self.weight)`, `x @ self.gate_up_proj[expert]` or `F.embedding(ids, self.weight)`. The
objects here stand where the tensor stood and answer these calls with the operators for quantized weights, so that the
module's own code runs unchanged. `self.weight[2:7]` decodes these rows. Any other function of torch gets the dequantized
weight.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F


class _InPlaceOfATensor(torch.nn.Module):
    """What code asks of a tensor besides its values."""

    requires_grad = False
    lacks = "its codes are frozen"
    """Why it has no other attributes of a tensor."""

    def __init__(self, shape: list[int]) -> None:
        super().__init__()
        self.shape = torch.Size(shape)

    @property
    def dtype(self) -> torch.dtype:
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            shape = list(self.__dict__.get("shape", ()))  # not set while a copy is made
            raise AttributeError(f"{type(self).__name__} {shape}: has no '{name}': {self.lacks}") from None

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def dim(self) -> int:
        return self.ndim

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def numel(self) -> int:
        count: int = self.shape.numel()
        return count

    def extra_repr(self) -> str:
        return f"shape={list(self.shape)}, dtype={self.dtype}"


class _Type(torch.nn.Module):
    """A type that casts change: what casts the parameters of a model, as .to(dtype) and peft's
    prepare_model_for_kbit_training() do, casts `like`, too. It has no elements, and no state dict has it."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.like = torch.nn.Parameter(torch.empty(0, dtype=dtype), requires_grad=False)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        pass

    def _load_from_state_dict(self, *args: Any) -> None:
        pass


class QuantizedWeight(_InPlaceOfATensor):
    """A frozen weight [rows, columns] whose rows are those of one quantized layer, or of several one after the other.

    layers: `Weight4bit` or `WeightInt8` without a bias. dtype: the type that the weight has for the code that uses it.
    """

    def __init__(self, layers: list[torch.nn.Module], dtype: torch.dtype) -> None:
        columns = {layer.in_features for layer in layers}
        if len(columns) != 1:
            raise ValueError(f"layers: have {sorted(columns)} columns, which do not fit together")
        super().__init__([sum(layer.out_features for layer in layers), columns.pop()])
        self.layers = torch.nn.ModuleList(layers)
        self.type_of_weight = _Type(dtype)

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = self.type_of_weight.like.dtype
        return dtype

    def dequantize(self) -> torch.Tensor:
        return torch.cat([layer.dequantize(self._decoded_dtype()) for layer in self.layers]).to(self.dtype)

    def linear(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """x W^T + bias."""
        parts = [layer(x) for layer in self.layers]
        y = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        return y if bias is None else y + bias.to(y.dtype)

    def matmul(self, x: torch.Tensor) -> torch.Tensor:
        """x W."""
        if x.shape[-1] != self.shape[0]:
            raise ValueError(f"x: has {x.shape[-1]} columns, and the weight {self.shape[0]} rows")
        begin, sums = 0, []
        for layer in self.layers:
            sums.append(layer.multiply_by_weight(x[..., begin : begin + layer.out_features]))
            begin += layer.out_features
        return sums[0] if len(sums) == 1 else torch.stack(sums).sum(0)

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        """The rows of these numbers, dequantized: [*indices.shape, columns]. No other row is decoded. Raises
        IndexError if there is no such row."""
        if len(self.layers) != 1:
            return F.embedding(indices, self.dequantize())
        rows = self.layers[0].dequantize_rows(indices.reshape(-1), self._decoded_dtype())
        return rows.to(self.dtype).reshape(*indices.shape, self.shape[1])

    def __len__(self) -> int:
        rows: int = self.shape[0]
        return rows

    def __getitem__(self, index: Any) -> torch.Tensor:
        if isinstance(index, (int, slice)):
            return self.rows(torch.arange(len(self), device=self.device)[index])
        if isinstance(index, torch.Tensor) and index.dtype in (torch.int32, torch.int64):
            return self.rows(torch.where(index < 0, index + len(self), index))
        return self.dequantize()[index]

    def _decoded_dtype(self) -> torch.dtype:
        """Codes are decoded to 32 bits at most."""
        return torch.float32 if self.dtype == torch.float64 else self.dtype

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function is F.linear and _is_weight(args, 1):
            return args[1].linear(args[0], *args[2:], **kwargs)
        if function in _PRODUCTS and _is_weight(args, 1) and not kwargs:
            return args[1].matmul(args[0])
        if function is F.embedding and _is_weight(args, 1) and _is_lookup(*args[2:], **kwargs):
            return args[1].rows(args[0])
        return function(*_dequantized(args), **_dequantized(kwargs))


class ExpertWeights(_InPlaceOfATensor):
    """The weights of a layer's experts where one tensor [experts, rows, columns] stood: `weights[e]` is that of one."""

    lacks = 'quantized experts come one by one; use the model with experts_implementation="eager"'

    def __init__(self, experts: list[QuantizedWeight]) -> None:
        shapes = {weight.shape for weight in experts}
        if len(shapes) != 1:
            raise ValueError(f"experts: have the shapes {sorted(map(list, shapes))}, which have to be one")
        super().__init__([len(experts), *shapes.pop()])
        self.experts = torch.nn.ModuleList(experts)

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = self.experts[0].dtype
        return dtype

    def __len__(self) -> int:
        return len(self.experts)

    def __getitem__(self, expert: int | torch.Tensor) -> QuantizedWeight:
        if isinstance(expert, torch.Tensor) and expert.numel() != 1:
            raise TypeError(
                f"experts: {expert.numel()} of them are asked for at once, quantized ones come one by one; use "
                'the model with experts_implementation="eager"'
            )
        found: QuantizedWeight = self.experts[int(expert)]
        return found


_PRODUCTS = (torch.matmul, torch.mm, torch.Tensor.matmul, torch.Tensor.mm, torch.Tensor.__matmul__)


def _is_weight(args: Any, index: int) -> bool:
    return len(args) > index and isinstance(args[index], QuantizedWeight) and isinstance(args[0], torch.Tensor)


def _is_lookup(
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> bool:
    """Whether F.embedding() with these options does nothing but look up: the others are about gradients."""
    return max_norm is None


def _dequantized(value: Any) -> Any:
    """`value` with a tensor for each weight in it: torch.cat() and others take lists of them."""
    if isinstance(value, QuantizedWeight):
        return value.dequantize()
    if isinstance(value, dict):
        return {key: _dequantized(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_dequantized(item) for item in value)
    return value
