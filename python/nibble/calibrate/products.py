"""Sees every product of a model's weights, whichever module makes it: linear layers, Conv1D, and the experts of fused
parameters [experts, ...], each of which is multiplied by tokens of its own. Sees every attention, for attention.py.

A weight is recognised by its address, so a product counts if one operand is a whole parameter or a whole expert of one.
"""

from __future__ import annotations

import bisect
from collections.abc import Container, Iterable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .attention import Attention, Probabilities, ScaledDotProduct, scaled_dot_product_attention
from .inputs import Inputs

# Where a product has its two operands, and what the second one is called.
OPERANDS = {
    torch.nn.functional.linear: (0, 1, "weight"),
    torch.addmm: (1, 2, "mat2"),
    torch.matmul: (0, 1, "other"),
    torch.Tensor.matmul: (0, 1, "other"),
    torch.Tensor.__matmul__: (0, 1, "other"),
    torch.mm: (0, 1, "mat2"),
    torch.Tensor.mm: (0, 1, "mat2"),
}


class Weights:
    """Parameters by their addresses."""

    def __init__(self, parameters: Iterable[tuple[str, Any]]):
        matrices = [(p.data_ptr(), n, p) for n, p in parameters if p.ndim in (2, 3) and p.numel() and not p.is_meta]
        matrices.sort(key=lambda item: item[:2])
        self._addresses = [address for address, _, _ in matrices]
        self._matrices = [(name, parameter) for _, name, parameter in matrices]

    def find(self, operand: Any) -> str | None:
        """`module.weight`, or `parameter.3` for expert 3 of a fused parameter."""
        index = bisect.bisect_right(self._addresses, operand.data_ptr()) - 1
        if index < 0:
            return None
        name, parameter = self._matrices[index]
        offset = operand.data_ptr() - self._addresses[index]
        if parameter.ndim == 2:
            return name if offset == 0 and operand.numel() == parameter.numel() else None
        expert, rest = divmod(offset, parameter[0].nbytes)
        whole = rest == 0 and expert < len(parameter) and operand.numel() == parameter[0].numel()
        return f"{name}.{expert}" if whole else None


class Products(TorchFunctionMode):
    """While it is entered, inputs.add(weight, x) is called for each product of x with one of the weights, and
    inputs.add_attended() for those of `candidates` that are value projections."""

    def __init__(self, weights: Weights, inputs: Inputs, candidates: Container[str]):
        super().__init__()
        self._weights, self._inputs, self._attention = weights, inputs, Attention(inputs, candidates)

    def begin_call(self) -> None:
        """A forward pass begins."""
        self._inputs.begin_call()
        self._attention.begin_call()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function is scaled_dot_product_attention:
            attention = ScaledDotProduct.of(*args, **kwargs)
            if attention is None:
                self._attention.skip()
            else:
                self._attention.add(attention)
        if function not in OPERANDS:
            return function(*args, **kwargs)
        left, right, name = OPERANDS[function]
        operand = args[right] if len(args) > right else kwargs.get(name)
        if not isinstance(operand, torch.Tensor):
            return function(*args, **kwargs)
        weight = self._weights.find(operand)
        if weight is None:
            if len(args) == 2:  # not addmm
                self._attention.add(Probabilities(*args))
            return function(*args, **kwargs)
        x = args[left] if len(args) > left else kwargs["input"]
        self._inputs.add(weight, x)
        product = function(*args, **kwargs)
        self._attention.add_product(weight, x, product)
        return product

    def __exit__(self, *error: Any) -> None:
        self._attention.begin_call()  # what it holds
        super().__exit__(*error)
