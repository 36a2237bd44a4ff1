"""nibble behind `torch.ops.bitsandbytes.*` on the CPU: scripts that use bitsandbytes get it without a change.

bitsandbytes calls `entry_point()` when it is imported (its entry points `bitsandbytes.backends`); `enable()` does the
same where nibble is not installed as a package. NIBBLE_BITSANDBYTES=0 in the environment turns it off.
docs/bitsandbytes-drop-in.md says what is replaced and what differs.
"""

from __future__ import annotations

import inspect
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

VARIABLE = "NIBBLE_BITSANDBYTES"


def is_turned_off() -> bool:
    """Whether the environment says that bitsandbytes keeps its own operators."""
    return os.environ.get(VARIABLE, "").strip().lower() in ("0", "false", "off", "no")


class _Enabled:
    """The replaced operators. Destroying the library gives bitsandbytes' own back."""

    def __init__(self, modules: Any) -> None:
        self.library = torch.library.Library("bitsandbytes", "IMPL")
        self.originals: dict[str, Any] = {}  # by name: what runs where nibble has nothing
        self.modules = modules  # bitsandbytes.nn.modules, and the function of it that was replaced
        self.pack: Callable[..., Any] | None = getattr(modules, "_convert_weight_packed_for_cpu", None)


_enabled: _Enabled | None = None  # while operators are replaced
failure: str | None = None
"""Why the call of bitsandbytes replaced nothing."""


# --- the operators, with bitsandbytes' names of arguments ------------------------------------------------------------

_ZERO = torch.zeros((), device="cpu")  # whatever the default device is


def _bytes(packed: Tensor) -> Tensor:
    return packed if packed.is_contiguous() else packed.contiguous()


def _quantize_4bit(
    A: Tensor, blocksize: int, quant_type: str, quant_storage: torch.dtype
) -> tuple[Tensor, Tensor]:
    packed, absmax = torch.ops.nibble.quantize_4bit(A, blocksize, quant_type)
    if quant_storage != torch.uint8:
        packed = packed.view(-1).view(quant_storage).unsqueeze(1)
    return packed, absmax


def _dequantize_4bit(
    A: Tensor, absmax: Tensor, blocksize: int, quant_type: str, shape: Sequence[int], dtype: torch.dtype
) -> Tensor:
    return torch.ops.nibble.dequantize_4bit(
        _bytes(A), absmax.float().contiguous(), None, None, None, list(shape), blocksize, quant_type, dtype
    )


def _dequantize_4bit_out(
    A: Tensor, absmax: Tensor, blocksize: int, quant_type: str, shape: Sequence[int], dtype: torch.dtype, out: Tensor
) -> None:
    out.copy_(_dequantize_4bit(A, absmax, blocksize, quant_type, shape, dtype))


def _gemm_4bit(
    A: Tensor,
    B: Tensor,
    shapeB: Sequence[int],
    absmax: Tensor,
    blocksize: int,
    quant_type: str,
    bias: Tensor | None = None,
    absmax_8bit: Tensor | None = None,
    absmax_code: Tensor | None = None,
    absmax_offset: Tensor | None = None,
) -> Tensor:
    parts: tuple[Tensor | None, ...] = (absmax, None, None, None)
    if absmax_8bit is not None and absmax_offset is not None:
        parts = (absmax_8bit, absmax, absmax_code, absmax_offset.float())
    with torch.no_grad():
        return torch.ops.nibble.linear_4bit(A, _bytes(B), *parts, bias, shapeB[0], blocksize, quant_type)


def _gemv_4bit(A: Tensor, B: Tensor, shapeB: Sequence[int], absmax: Tensor, code: Tensor, blocksize: int) -> Tensor:
    if absmax.dtype == torch.bfloat16:
        # bitsandbytes packs weights anew for its own kernel on processors with AVX512-BF16, with bfloat16 absmax. A layer
        # that it packed before enable() was called stays its own.
        return _original("gemv_4bit", A, B, shapeB, absmax, code, blocksize)
    quant_type = "fp4" if code[1] > 0 else "nf4"
    return _gemm_4bit(A, B, shapeB, absmax, blocksize, quant_type)


def _gemv_4bit_out(
    A: Tensor, B: Tensor, shapeB: Sequence[int], absmax: Tensor, code: Tensor, blocksize: int, out: Tensor
) -> None:
    out.copy_(_gemv_4bit(A, B, shapeB, absmax, code, blocksize))


_nested_quant_map: Tensor | None = None


def _is_nested(code: Tensor, blocksize: int) -> bool:
    """Whether this is the 8-bit code that nibble has: that of absmax, in blocks of 256."""
    global _nested_quant_map
    if _nested_quant_map is None:
        _nested_quant_map = torch.ops.nibble.quant_map("nested")
    return blocksize == 256 and torch.equal(code, _nested_quant_map)


def _quantize_blockwise(A: Tensor, code: Tensor, blocksize: int) -> tuple[Tensor, Tensor]:
    if not _is_nested(code, blocksize):
        original: tuple[Tensor, Tensor] = _original("quantize_blockwise", A, code, blocksize)
        return original
    codes, absmax, _ = torch.ops.nibble.quantize_absmax(A.reshape(-1).contiguous().float(), _ZERO)
    return codes.view(A.shape), absmax


def _dequantize_blockwise(A: Tensor, absmax: Tensor, code: Tensor, blocksize: int, dtype: torch.dtype) -> Tensor:
    if blocksize != 256 or code.dtype != torch.float32 or code.numel() != 256:
        return _original("dequantize_blockwise", A, absmax, code, blocksize, dtype)
    values = torch.ops.nibble.dequantize_absmax(A.contiguous(), absmax.contiguous(), code.contiguous(), _ZERO)
    return values.to(dtype)


def _dequantize_blockwise_out(
    A: Tensor, absmax: Tensor, code: Tensor, blocksize: int, dtype: torch.dtype, out: Tensor
) -> None:
    out.copy_(torch.ops.bitsandbytes.dequantize_blockwise(A, absmax, code, blocksize, dtype))


def _int8_vectorwise_quant(A: Tensor, threshold: float = 0.0) -> tuple[Tensor, Tensor, Tensor | None]:
    # Codes are made of fp16. A NaN or an infinity among activations has to reach the result, which only bitsandbytes'
    # rule does.
    if A.dtype != torch.float16 or A.dim() != 2 or not torch.isfinite(A.sum(dtype=torch.float32)):
        original: tuple[Tensor, Tensor, Tensor | None] = _original("int8_vectorwise_quant", A, threshold)
        return original
    outlier_cols = None
    inliers = A
    if threshold > 0.0:
        outliers = A.abs() >= threshold
        outlier_cols = outliers.any(dim=0).nonzero().view(-1)
        if outlier_cols.numel():
            inliers = A.masked_fill(outliers, 0)
    codes, absmax = torch.ops.nibble.quantize_int8(inliers)
    if outlier_cols is not None and outlier_cols.numel() and A.shape[0] > 1:
        codes[:, outlier_cols] = 0
    return codes, absmax, outlier_cols


def _int8_mm_dequant(
    A: Tensor, row_stats: Tensor, col_stats: Tensor, dtype: torch.dtype | None = None, bias: Tensor | None = None
) -> Tensor:
    # In bitsandbytes 0.50.2 the factor is 6.200124e-05, which is not 1 / 127^2.
    for name, tensor, needed in (
        ("A", A, torch.int32),
        ("row_stats", row_stats, torch.float32),
        ("col_stats", col_stats, torch.float32),
    ):
        if tensor.dtype != needed:
            raise ValueError(f"{name} must be {str(needed).removeprefix('torch.')}, got {tensor.dtype}")
    out = A.reshape(-1, A.shape[-1]).float()
    out.mul_(row_stats.reshape(-1, 1) / (127.0 * 127.0)).mul_(col_stats.reshape(1, -1))
    if bias is not None:
        out += bias
    return out.to(dtype or torch.float16)


_OPERATORS: dict[str, Callable[..., Any]] = {
    "quantize_4bit": _quantize_4bit,
    "dequantize_4bit": _dequantize_4bit,
    "dequantize_4bit.out": _dequantize_4bit_out,
    "gemm_4bit": _gemm_4bit,
    "gemv_4bit": _gemv_4bit,
    "gemv_4bit.out": _gemv_4bit_out,
    "quantize_blockwise": _quantize_blockwise,
    "dequantize_blockwise": _dequantize_blockwise,
    "dequantize_blockwise.out": _dequantize_blockwise_out,
    "int8_vectorwise_quant": _int8_vectorwise_quant,
    "int8_mm_dequant": _int8_mm_dequant,
}


# --- replacing and giving back --------------------------------------------------------------------------------------


def _original(name: str, *arguments: Any) -> Any:
    """Calls bitsandbytes' own operator, while it is replaced."""
    assert _enabled is not None
    return _enabled.originals[name].call_boxed(torch._C.DispatchKeySet(torch._C.DispatchKey.CPU), *arguments)


def _overload(name: str) -> Any:
    """torch.ops.bitsandbytes.NAME, or None where this bitsandbytes has no such operator."""
    operator, _, overload = name.partition(".")
    try:
        return getattr(getattr(torch.ops.bitsandbytes, operator), overload or "default")
    except AttributeError:
        return None


def _replaceable(name: str, function: Callable[..., Any]) -> bool:
    """Whether this bitsandbytes has the operator with the arguments that `function` takes."""
    overload = _overload(name)
    return overload is not None and [a.name for a in overload._schema.arguments] == list(
        inspect.signature(function).parameters
    )


def _keep_layout(weight: Tensor, quant_state: Any) -> tuple[Tensor, Any]:
    """In place of the function that packs weights for bitsandbytes' kernel for AVX512-BF16, which nibble does without.

    Packing rounds absmax to bfloat16, and double quantization cannot be restored after it.
    """
    return weight, quant_state


def enable() -> bool:
    """Replaces bitsandbytes' operators on the CPU. Returns whether they are replaced now.

    Does nothing if is_turned_off(), or if they are replaced already. Raises ImportError if bitsandbytes or
    nibble's operators are not installed.
    """
    global _enabled
    if is_turned_off():
        return False
    if _enabled is not None:
        return True
    import bitsandbytes
    import bitsandbytes.nn.modules

    from . import operators  # noqa: F401: loads the operators

    if _enabled is not None:
        return True  # bitsandbytes has called entry_point()
    enabled = _Enabled(bitsandbytes.nn.modules)
    for name, function in _OPERATORS.items():
        if not _replaceable(name, function):
            continue
        if torch._C._dispatch_has_kernel_for_any_dispatch_key(
            f"bitsandbytes::{name}", torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
        ) or torch._C._dispatch_has_kernel_for_dispatch_key(f"bitsandbytes::{name}", "CompositeExplicitAutograd"):
            enabled.originals[name] = torch.library.get_kernel(f"bitsandbytes::{name}", "CPU")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that a kernel is replaced
        for name, function in _OPERATORS.items():
            if _replaceable(name, function):
                enabled.library.impl(name, function, "CPU", allow_override=True)
    if enabled.pack is not None:
        enabled.modules._convert_weight_packed_for_cpu = _keep_layout
    _enabled = enabled
    return True


def disable() -> None:
    """Gives bitsandbytes its own operators back."""
    global _enabled
    if _enabled is None:
        return
    if _enabled.pack is not None:
        _enabled.modules._convert_weight_packed_for_cpu = _enabled.pack
    _enabled.library._destroy()
    _enabled = None


def replaced() -> list[str]:
    """The operators that nibble has replaced, such as "bitsandbytes::quantize_4bit", sorted."""
    if _enabled is None:
        return []
    return sorted(f"bitsandbytes::{name}" for name, function in _OPERATORS.items() if _replaceable(name, function))


def entry_point() -> None:
    """What bitsandbytes calls when it is imported. It must not fail: bitsandbytes could not be imported then."""
    global failure
    try:
        enable()
    except Exception as error:
        failure = str(error)
        print(f"nibble: bitsandbytes runs without it: {error}", file=sys.stderr)
