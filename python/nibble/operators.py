"""The operators `torch.ops.nibble.*`: products with quantized weights, and quantization, on torch tensors.

Importing this module loads libnibble_torch, in which they are written, and tells torch what tracing (`torch.compile`)
and autograd have to know of them. docs/torch.md has what each of them computes.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Sequence
from typing import Any, Union

import torch
from torch import Tensor

from . import _library
from .errors import UsageError

Gradients = tuple[Union[Tensor, None], ...]  # of each argument

BLOCKSIZES = (32, 64, 128, 256, 512, 1024, 2048, 4096)
QUANT_TYPES = ("nf4", "fp4")
NESTED_BLOCKSIZE = 256  # absmax values per nested absmax


def _load() -> None:
    if not hasattr(torch.ops.nibble, "linear_4bit"):  # another copy of this module may have loaded it
        _load_library()
    if target := os.environ.get("NIBBLE_CPU_TARGET"):
        try:
            torch.ops.nibble.force_cpu_target(target)
        except RuntimeError as error:
            raise UsageError(f"NIBBLE_CPU_TARGET: {error}") from None


def _load_library() -> None:
    path = _library.find("libnibble_torch.so", "NIBBLE_TORCH_LIBRARY")
    if path is None:
        raise ImportError(
            f"{_library.folders()[0]}: has no libnibble_torch.so, so nibble was installed without operators for torch; "
            "install it again where torch 2.10 or later is installed (docs/python.md)"
        )
    try:
        torch.ops.load_library(path)
    except OSError as error:
        raise ImportError(f"{path}: cannot be loaded: {error}") from error


_load()
_ops = torch.ops.nibble


# What tracing has to know: shapes and types of the results.


def _fake(operator: str) -> Callable[[Callable[..., Any]], None]:
    """Registers what tracing calls for an operator. Its result is on the device of the first tensor, and the others have
    to be there: torch also makes this call if one argument of a real product is on the meta device, and the result would
    have memory that nothing wrote. On the meta device, a result has no memory."""

    def register(function: Callable[..., Any]) -> None:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def checked(*arguments: Any, **keywords: Any) -> Any:
            given = signature.bind(*arguments, **keywords).arguments
            tensors = [(name, value) for name, value in given.items() if isinstance(value, Tensor)]
            for name, tensor in tensors[1:]:
                first, of_result = tensors[0]
                if tensor.device != of_result.device and not of_result.is_meta:
                    raise ValueError(f"{name}: is on {tensor.device}, and {first} on {of_result.device}")
            return function(*arguments, **keywords)

        torch.library.register_fake(f"nibble::{operator}")(checked)

    return register


@_fake("linear_4bit")
def _(
    x: Tensor,
    packed: Tensor,
    absmax: Tensor,
    nested_absmax: Tensor | None,
    nested_quant_map: Tensor | None,
    nested_offset: Tensor | None,
    bias: Tensor | None,
    out_features: int,
    blocksize: int,
    quant_type: str,
) -> Tensor:
    return x.new_empty((*x.shape[:-1], out_features))


@_fake("linear_4bit_dx")
def _(
    dy: Tensor,
    packed: Tensor,
    absmax: Tensor,
    nested_absmax: Tensor | None,
    nested_quant_map: Tensor | None,
    nested_offset: Tensor | None,
    in_features: int,
    blocksize: int,
    quant_type: str,
) -> Tensor:
    return dy.new_empty((*dy.shape[:-1], in_features))


@_fake("quantize_4bit")
def _(weights: Tensor, blocksize: int, quant_type: str) -> tuple[Tensor, Tensor]:
    if blocksize not in BLOCKSIZES:
        raise ValueError(f"blocksize: is {blocksize}, not one of {', '.join(map(str, BLOCKSIZES))}")
    n = weights.numel()
    packed = weights.new_empty(((n + 1) // 2, 1), dtype=torch.uint8)
    return packed, weights.new_empty(((n + blocksize - 1) // blocksize,), dtype=torch.float32)


@_fake("dequantize_4bit")
def _(
    packed: Tensor,
    absmax: Tensor,
    nested_absmax: Tensor | None,
    nested_quant_map: Tensor | None,
    nested_offset: Tensor | None,
    shape: Sequence[int],
    blocksize: int,
    quant_type: str,
    dtype: torch.dtype,
) -> Tensor:
    return packed.new_empty(shape, dtype=dtype)


@_fake("quantize_absmax")
def _(absmax: Tensor, offset: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    blocks = (absmax.numel() + NESTED_BLOCKSIZE - 1) // NESTED_BLOCKSIZE
    codes = absmax.new_empty((absmax.numel(),), dtype=torch.uint8)
    return codes, absmax.new_empty((blocks,)), absmax.new_empty(())


@_fake("dequantize_absmax")
def _(codes: Tensor, nested_absmax: Tensor, nested_quant_map: Tensor, nested_offset: Tensor) -> Tensor:
    return codes.new_empty(codes.shape, dtype=torch.float32)


@_fake("quant_map")
def _(quant_type: str) -> Tensor:
    return torch.empty(256 if quant_type == "nested" else 16)


@_fake("linear_int8")
def _(x: Tensor, weight: Tensor, absmax: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


@_fake("linear_int8_dx")
def _(dy: Tensor, weight: Tensor, absmax: Tensor) -> Tensor:
    return dy.new_empty((*dy.shape[:-1], weight.shape[1]))


@_fake("quantize_int8")
def _(weights: Tensor) -> tuple[Tensor, Tensor]:
    return weights.new_empty(weights.shape, dtype=torch.int8), weights.new_empty(
        (weights.shape[0],), dtype=torch.float32
    )


@_fake("dequantize_int8")
def _(weight: Tensor, absmax: Tensor, dtype: torch.dtype) -> Tensor:
    return weight.new_empty(weight.shape, dtype=dtype)


# What autograd has to know. The weight is frozen: x and the bias have gradients. The gradient of x does not need x, so
# a layer keeps no activations.


def _bias_gradient(ctx: Any, dy: Tensor, position: int) -> Tensor | None:
    return dy.reshape(-1, dy.shape[-1]).sum(0) if ctx.needs_input_grad[position] else None


def _keep_4bit(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, *parts, _bias, _out_features, ctx.blocksize, ctx.quant_type = inputs
    ctx.in_features = x.shape[-1]
    ctx.save_for_backward(*parts)


def _linear_4bit_backward(ctx: Any, dy: Tensor) -> Gradients:
    dx = None
    if ctx.needs_input_grad[0]:
        dx = _ops.linear_4bit_dx(dy, *ctx.saved_tensors, ctx.in_features, ctx.blocksize, ctx.quant_type)
    return dx, None, None, None, None, None, _bias_gradient(ctx, dy, 6), None, None, None


def _keep_4bit_dx(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    dy, *parts, _in_features, ctx.blocksize, ctx.quant_type = inputs
    ctx.out_features = dy.shape[-1]
    ctx.save_for_backward(*parts)


def _linear_4bit_dx_backward(ctx: Any, dx: Tensor) -> Gradients:
    dy = _ops.linear_4bit(dx, *ctx.saved_tensors, None, ctx.out_features, ctx.blocksize, ctx.quant_type)
    return dy, None, None, None, None, None, None, None, None


def _keep_int8(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[1:3])


def _linear_int8_backward(ctx: Any, dy: Tensor) -> Gradients:
    dx = _ops.linear_int8_dx(dy, *ctx.saved_tensors) if ctx.needs_input_grad[0] else None
    return dx, None, None, _bias_gradient(ctx, dy, 3)


def _linear_int8_dx_backward(ctx: Any, dx: Tensor) -> Gradients:
    return _ops.linear_int8(dx, *ctx.saved_tensors, None), None, None


torch.library.register_autograd("nibble::linear_4bit", _linear_4bit_backward, setup_context=_keep_4bit)
torch.library.register_autograd("nibble::linear_4bit_dx", _linear_4bit_dx_backward, setup_context=_keep_4bit_dx)
torch.library.register_autograd("nibble::linear_int8", _linear_int8_backward, setup_context=_keep_int8)
torch.library.register_autograd("nibble::linear_int8_dx", _linear_int8_dx_backward, setup_context=_keep_int8)
