"""torch.ops.nibble on CUDA, by a libnibble_cuda whose device is simulated in ordinary memory: the functions that torch
has for CUDA tensors are called with tensors on the CPU. test_cuda_operators.py runs this file with what that needs."""

import pathlib
import sys

import nibble.nn  # noqa: F401: loads the operators
import pytest
import torch
from conftest import Weight

sys.path.insert(0, str(pathlib.Path(__file__).parents[3] / "bench" / "kernels" / "run"))
import kernels_product  # noqa: E402

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
every_dtype = pytest.mark.parametrize("dtype", DTYPES)
# Runs of one weight, of 16 and of 64 that share an absmax; an odd number of weights.
SHAPES = ((1, 1), (5, 33), (48, 80), (64, 192))
ops = torch.ops.nibble


def on_cuda(name):
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
    kernel = torch.library.get_kernel(f"nibble::{name}", "CUDA")
    return lambda *arguments: kernel.call_boxed(keys, *arguments)


def linear(weight, x, bias=None):
    arguments = (bias, weight.shape[0], weight.blocksize, weight.quant_type)
    return on_cuda("linear_4bit")(x, weight.packed, *weight.parts, *arguments)


def assert_product(result, x, weight, bias=None):
    assert result.dtype == x.dtype and result.shape == (len(x), len(weight))
    assert kernels_product.fault(result, x, weight.double(), bias) is None


def assert_equal(found, expected):
    for part, other in zip(found, expected, strict=True):
        assert torch.equal(part, other) and part.dtype == other.dtype


@every_dtype
def test_codes_are_those_of_the_cpu(dtype):
    for n, k in SHAPES:
        weight = torch.randn(n, k).to(dtype)
        for quant_type, blocksize in (("nf4", 64), ("fp4", 32), ("nf4", 4096)):
            arguments = (weight, blocksize, quant_type)
            assert_equal(on_cuda("quantize_4bit")(*arguments), ops.quantize_4bit(*arguments))
        assert_equal(on_cuda("quantize_int8")(weight), ops.quantize_int8(weight))
    columns = torch.randn(64, 6).to(dtype).T
    assert_equal(on_cuda("quantize_4bit")(columns, 64, "nf4"), ops.quantize_4bit(columns, 64, "nf4"))
    assert_equal(on_cuda("quantize_int8")(columns), ops.quantize_int8(columns))


@every_dtype
@pytest.mark.parametrize("nested", (False, True))
def test_weights_are_those_of_the_cpu(dtype, nested):
    for n, k in SHAPES:
        weight = Weight(n, k, "fp4", 32, nested)
        arguments = (weight.packed, *weight.parts, [n, k], 32, "fp4", dtype)
        assert torch.equal(on_cuda("dequantize_4bit")(*arguments), weight.dequantize(dtype))
        codes = ops.quantize_int8(weight.original)
        assert torch.equal(on_cuda("dequantize_int8")(*codes, dtype), ops.dequantize_int8(*codes, dtype))


@every_dtype
@pytest.mark.parametrize("nested", (False, True))
@pytest.mark.parametrize("m", (1, 16, 64, 65))
def test_products(m, nested, dtype):
    for n, k in SHAPES:
        weight = Weight(n, k, "nf4", 64, nested)
        codes, absmax = ops.quantize_int8(weight.original)
        int8 = ops.dequantize_int8(codes, absmax, torch.float32)
        x, dy, bias = (torch.randn(size).to(dtype) for size in ((m, k), (m, n), (n,)))
        for b in (None, bias):
            assert_product(linear(weight, x, b), x, weight.fp32, b)
            assert_product(on_cuda("linear_int8")(x, codes, absmax, b), x, int8, b)
        arguments = (weight.packed, *weight.parts, k, 64, "nf4")
        assert_product(on_cuda("linear_4bit_dx")(dy, *arguments), dy, weight.fp32.T)
        assert_product(on_cuda("linear_int8_dx")(dy, codes, absmax), dy, int8.T)


@every_dtype
def test_shapes_of_x(dtype):
    weight = Weight(48, 64)
    codes, absmax = ops.quantize_int8(weight.original)
    for x in (torch.randn(64), torch.randn(2, 3, 64), torch.randn(0, 64), torch.randn(64, 6).T):
        x = x.to(dtype)
        for y, w in (
            (linear(weight, x), weight.fp32),
            (on_cuda("linear_int8")(x, codes, absmax, None), ops.dequantize_int8(codes, absmax, torch.float32)),
        ):
            assert y.shape == (*x.shape[:-1], 48) and y.dtype == dtype
            assert y._base is None  # of a view, autograd would not allow `y += 1`
            if y.numel() > 0:
                assert_product(y.reshape(-1, 48), x.reshape(-1, 64), w)
    nothing = on_cuda("quantize_4bit")(torch.empty(0, 4), 64, "nf4")
    assert [part.numel() for part in nothing] == [0, 0]
    assert on_cuda("dequantize_4bit")(*nothing, None, None, None, [0, 4], 64, "nf4", dtype).shape == (0, 4)


def test_refused():
    weight = Weight(4, 64)
    with pytest.raises(RuntimeError, match="^x: is torch.float64, not torch.float32, bfloat16 or float16$"):
        linear(weight, torch.ones(1, 64).double())
    with pytest.raises(RuntimeError, match="^packed: has 128 bytes, and 260 weights need 130$"):
        linear(weight, torch.ones(1, 65))
    with pytest.raises(RuntimeError, match="^blocksize: is 48, not one of 32, 64, ..., 4096$"):
        on_cuda("quantize_4bit")(torch.ones(64), 48, "nf4")


def test_tensors_on_two_devices_are_refused():
    # torch calls the function for CUDA if any tensor is there.
    weight, elsewhere = Weight(4, 64), torch.ones(2, 64, device="meta")
    codes, absmax = ops.quantize_int8(weight.original)
    for name, argument, arguments in (
        ("linear_4bit", "x", (elsewhere, weight.packed, *weight.parts, None, 4, 64, "nf4")),
        ("linear_4bit_dx", "dy", (elsewhere[:, :4], weight.packed, *weight.parts, 64, 64, "nf4")),
        ("linear_int8", "x", (elsewhere, codes, absmax, None)),
        ("linear_int8_dx", "dy", (elsewhere[:, :4], codes, absmax)),
        ("linear_int8", "absmax", (torch.ones(2, 64), codes, absmax.to("meta"), None)),
        ("linear_4bit", "bias", (torch.ones(2, 64), weight.packed, *weight.parts, elsewhere[0, :4], 4, 64, "nf4")),
        ("dequantize_4bit", "absmax", (weight.packed, absmax.to("meta"), None, None, None, [4, 64], 64, "nf4",
                                       torch.float32)),
    ):  # fmt: skip
        with pytest.raises(RuntimeError, match=f"^{argument}: is on another device than the other tensors$"):
            on_cuda(name)(*arguments)
