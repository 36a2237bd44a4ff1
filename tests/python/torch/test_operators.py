"""torch.ops.nibble: values, gradients, what tracing is told, and what is refused."""

import os
import subprocess
import sys

import pytest
import torch
from conftest import BLOCKSIZES, SHAPES, Weight, assert_product
from huge_pages import asked_for_huge_pages
from nibble import operators  # noqa: F401: loads the operators

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("nested", (False, True))
@pytest.mark.parametrize("quant_type", ("nf4", "fp4"))
@pytest.mark.parametrize("blocksize", BLOCKSIZES)
def test_dequantize_is_the_definition(quant_type, blocksize, nested):
    for n, k in SHAPES:
        weight = Weight(n, k, quant_type, blocksize, nested)
        for dtype in DTYPES:
            assert torch.equal(weight.dequantize(dtype), weight.fp32.to(dtype)), (n, k, dtype)


# Otherwise the page faults of a fresh result take most of the time. The result has more than the 32 MiB that malloc maps
# alone at the latest, so that no other memory is where it is.
def test_large_results_are_in_huge_pages():
    ops, size = torch.ops.nibble, 36 << 20
    packed, absmax = torch.zeros(size // 8, 1, dtype=torch.uint8), torch.ones(size // 4 // 64)
    results = (
        ops.dequantize_4bit(packed, absmax, None, None, None, [size // 4], 64, "nf4", torch.float32),
        ops.dequantize_int8(torch.zeros(1024, size // 4096, dtype=torch.int8), torch.ones(1024), torch.float32),
    )
    for result in results:
        assert result.nbytes == size
        assert asked_for_huge_pages(result.data_ptr() + size // 2)


@pytest.mark.parametrize("dtype", DTYPES)
def test_codes_are_the_nearest(dtype):
    weight = Weight(33, 80, dtype=dtype)
    codebook = torch.ops.nibble.quant_map("nf4")
    largest = torch.nn.functional.pad(weight.original.float().abs().flatten(), (0, 64 * 42 - 33 * 80))
    assert torch.equal(weight.absmax, largest.view(42, 64).amax(1))
    unit = weight.original.double().flatten() / weight.absmax.double()[torch.arange(33 * 80) // 64]
    got = weight.fp32.double().flatten() / weight.absmax.double()[torch.arange(33 * 80) // 64]
    nearest = (unit[:, None] - codebook.double()).abs().amin(1)
    assert ((unit - got).abs() <= nearest + 1e-6).all()


@pytest.mark.parametrize("nested", (False, True))
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m", (1, 2, 17, 70))
def test_linear_4bit(m, dtype, nested):
    for n, k in SHAPES:
        for blocksize in (32, 64, 4096):
            weight = Weight(n, k, "nf4", blocksize, nested)
            x, bias = torch.randn(m, k).to(dtype), torch.randn(n).to(dtype)
            assert_product(weight.linear(x), x, weight.fp32)
            assert_product(weight.linear(x, bias), x, weight.fp32, bias)


@pytest.mark.parametrize("nested", (False, True))
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m", (1, 70))
def test_linear_4bit_dx(m, dtype, nested):
    for n, k in SHAPES:
        for blocksize in (32, 64, 4096):
            weight = Weight(n, k, "fp4", blocksize, nested)
            dy = torch.randn(m, n).to(dtype)
            assert_product(weight.linear_dx(dy), dy, weight.fp32.T)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m", (1, 2, 70))
def test_linear_int8(m, dtype):
    for n, k in SHAPES:
        original = torch.randn(n, k)
        codes, absmax = torch.ops.nibble.quantize_int8(original)
        fp32 = codes.float() * absmax[:, None] * torch.tensor(7.874015718698502e-3)
        for to in DTYPES:
            assert torch.equal(torch.ops.nibble.dequantize_int8(codes, absmax, to), fp32.to(to)), (n, k, to)
        # Half a step of absmax / 127, and half a unit in the last place of fp16, to which weights are rounded first.
        assert ((fp32 - original).abs() <= absmax[:, None] * (1 / 254 + 1 / 2048)).all()
        x, bias, dy = torch.randn(m, k).to(dtype), torch.randn(n).to(dtype), torch.randn(m, n).to(dtype)
        assert_product(torch.ops.nibble.linear_int8(x, codes, absmax, bias), x, fp32, bias)
        assert_product(torch.ops.nibble.linear_int8_dx(dy, codes, absmax), dy, fp32.T)


@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_the_bound_of_fp32_products_is_tight(n, k):
    weight, x = Weight(n, k).fp32, torch.randn(2, k)
    exact = x.double() @ weight.double().T
    assert_product(exact.float(), x, weight)
    in_bf16 = x.bfloat16().double() @ weight.bfloat16().double().T
    without_a_term = exact - x[:, -1:].double() * weight[:, -1:].double().T
    for wrong in (in_bf16, without_a_term):
        with pytest.raises(AssertionError):
            assert_product(wrong.float(), x, weight)


def test_shapes_of_x():
    weight = Weight(40, 64)
    for shape in ((64,), (1, 64), (2, 3, 64), (0, 64), (2, 0, 64)):
        x = torch.randn(shape)
        torch.testing.assert_close(weight.linear(x), x @ weight.fp32.T)
    every_other = torch.randn(64, 6).T
    torch.testing.assert_close(weight.linear(every_other), every_other @ weight.fp32.T)
    torch.testing.assert_close(weight.linear_dx(torch.randn(40, 3).T).shape, torch.Size((3, 64)))


@pytest.mark.parametrize("storage", (torch.int8, torch.bfloat16, torch.float16, torch.float32, torch.float64))
def test_codes_in_another_type(storage):
    weight = Weight(16, 64)
    expected = weight.linear(torch.ones(64))
    weight.packed = weight.packed.view(-1).view(storage).view(-1, 1)
    assert torch.equal(weight.linear(torch.ones(64)), expected)


def test_the_number_of_threads_does_not_matter_to_codes():
    original = torch.randn(257, 512)
    threads = torch.get_num_threads()
    try:
        results = []
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            packed, absmax = torch.ops.nibble.quantize_4bit(original, 64, "nf4")
            codes, nested_absmax, offset = torch.ops.nibble.quantize_absmax(absmax)
            back = torch.ops.nibble.dequantize_4bit(
                packed, absmax, None, None, None, [257, 512], 64, "nf4", torch.bfloat16
            )
            results.append((packed, absmax, codes, nested_absmax, offset, back))
        for result in results[1:]:
            assert all(torch.equal(a, b) for a, b in zip(results[0], result, strict=True))
    finally:
        torch.set_num_threads(threads)


def test_absmax_values_in_8_bits():
    absmax = torch.rand(1000) + 1
    codes, nested_absmax, offset = torch.ops.nibble.quantize_absmax(absmax)
    quant_map = torch.ops.nibble.quant_map("nested")
    expected = quant_map[codes.int()] * nested_absmax[torch.arange(1000) // 256] + offset
    assert torch.equal(torch.ops.nibble.dequantize_absmax(codes, nested_absmax, quant_map, offset), expected)
    assert (expected - absmax).abs().max() < 0.01
    assert torch.equal(torch.ops.nibble.quantize_absmax(absmax, torch.tensor(1.5))[2], torch.tensor(1.5))


def samples(nested):
    weight = Weight(32, 64, nested=nested)
    x = torch.randn(2, 3, 64, requires_grad=True)
    bias = torch.randn(32, requires_grad=True)
    codes, absmax = torch.ops.nibble.quantize_int8(weight.original)
    ops = torch.ops.nibble
    quant_map = ops.quant_map("nested")
    return {
        "linear_4bit": (x, weight.packed, *weight.parts, bias, 32, 64, "nf4"),
        "linear_4bit_dx": (torch.randn(3, 32, requires_grad=True), weight.packed, *weight.parts, 64, 64, "nf4"),
        "quantize_4bit": (weight.original.bfloat16(), 64, "fp4"),
        "dequantize_4bit": (weight.packed, *weight.parts, [32, 64], 64, "nf4", torch.float16),
        "quantize_absmax": (torch.rand(300),),
        "dequantize_absmax": (torch.zeros(300, dtype=torch.uint8), torch.ones(2), quant_map, torch.zeros(())),
        "quant_map": ("nf4",),
        "linear_int8": (x, codes, absmax, bias),
        "linear_int8_dx": (torch.randn(3, 32, requires_grad=True), codes, absmax),
        "quantize_int8": (weight.original.half(),),
        "dequantize_int8": (codes, absmax, torch.bfloat16),
    }


@pytest.mark.parametrize("name", samples(False))
@pytest.mark.parametrize("nested", (False, True))
def test_what_tracing_is_told(name, nested):
    torch.library.opcheck(getattr(torch.ops.nibble, name).default, samples(nested)[name])


def test_every_operator_is_in_the_samples():
    names = {name.split("::")[1] for name in torch._C._dispatch_get_all_op_names() if name.startswith("nibble::")}
    assert names == {*samples(False), "force_cpu_target"}


# With an argument on the meta device, torch calls what tracing is told: its result would have memory that nothing wrote,
# unless it is on the meta device, too.
@pytest.mark.parametrize("nested", (False, True))
@pytest.mark.parametrize("name", samples(False))
def test_tensors_on_two_devices_are_refused(name, nested):
    arguments = samples(nested)[name]
    places = [i for i, argument in enumerate(arguments) if isinstance(argument, torch.Tensor)]
    for place in places[1:]:
        mixed = [argument.to("meta") if i == place else argument for i, argument in enumerate(arguments)]
        with pytest.raises(ValueError, match=r"^\w+: is on meta, and \w+ on cpu$"):
            getattr(torch.ops.nibble, name)(*mixed)
    if len(places) > 1:
        result = getattr(torch.ops.nibble, name)(arguments[0].to("meta"), *arguments[1:])
        assert result.is_meta


PRODUCT = """
import torch
from nibble import operators
torch.manual_seed(0)
packed, absmax = torch.ops.nibble.quantize_4bit(torch.randn(64, 256), 64, "nf4")
y = torch.ops.nibble.linear_4bit(torch.randn(1, 256), packed, absmax, None, None, None, None, 64, 64, "nf4")
print(y.view(torch.int32).tolist())
"""


def test_the_cpu_target_of_the_environment():
    def run(target, program=PRODUCT):
        environment = {name: value for name, value in os.environ.items() if name != "NIBBLE_CPU_TARGET"}
        environment |= {"NIBBLE_CPU_TARGET": target} if target else {}
        return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)

    best, scalar, unknown = run(None), run("SCALAR"), run("Z80")
    assert best.returncode == scalar.returncode == 0 and best.stdout != scalar.stdout  # other orders of sums
    assert unknown.returncode != 0 and "CPU target 'Z80': this build on this processor has" in unknown.stderr
    again = "try:\n    import nibble.nn\nexcept ValueError:\n    import nibble.nn"  # refused, not passed over
    assert "Z80" in run("Z80", again).stderr


@pytest.mark.parametrize("nested", (False, True))
def test_gradients(nested):
    weight = Weight(5, 32, "nf4", 32, nested)
    x = torch.randn(2, 3, 32, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(weight.linear, (x, bias))
    assert torch.autograd.gradgradcheck(weight.linear, (x, bias))
    codes, absmax = torch.ops.nibble.quantize_int8(weight.original)
    assert torch.autograd.gradcheck(lambda x, b: torch.ops.nibble.linear_int8(x, codes, absmax, b), (x, bias))
    assert torch.autograd.gradgradcheck(lambda x, b: torch.ops.nibble.linear_int8(x, codes, absmax, b), (x, bias))


def test_no_activation_is_kept():
    weight = Weight(64, 64)
    x = torch.randn(4, 64, requires_grad=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        weight.linear(x)
    assert all(t.data_ptr() != x.data_ptr() for t in kept) and len(kept) == 2


def refused(message, operator, *arguments):
    with pytest.raises(RuntimeError) as raised:
        operator(*arguments)
    assert str(raised.value) == message


def test_refused():
    ops = torch.ops.nibble
    w = Weight(4, 64)
    x, absmax, nothing = torch.ones(1, 64), w.parts[0], (None, None, None)

    def linear(x=x, packed=w.packed, absmax=absmax, nested=nothing, bias=None, n=4, blocksize=64, quant_type="nf4"):
        return ops.linear_4bit(x, packed, absmax, *nested, bias, n, blocksize, quant_type)

    linear()
    cases = {
        "blocksize: is 48, not one of 32, 64, ..., 4096": {"blocksize": 48},
        "quant_type: is 'int4', not nf4 or fp4": {"quant_type": "int4"},
        "packed: has 127 bytes, and 256 weights need 128": {"packed": w.packed[1:].clone()},
        "packed: is not contiguous": {"packed": torch.zeros(256, dtype=torch.uint8)[::2]},
        "absmax: has 3 values, and 256 weights need 4": {"absmax": absmax[1:].clone()},
        "absmax: is torch.float16, not torch.float32": {"absmax": absmax.half()},
        "absmax: is torch.float32, not torch.uint8": {"nested": (torch.ones(1), torch.ones(256), torch.ones(()))},
        "nested_absmax, nested_quant_map, nested_offset: some are given and some are not": {
            "nested": (torch.ones(1), None, None)
        },
        "x: is torch.int64, not torch.float32, bfloat16 or float16": {"x": torch.ones(1, 64).long()},
        "bias: has the shape [3], and the weight has 4 rows": {"bias": torch.ones(3)},
        "bias: is torch.float16, not torch.float32": {"bias": torch.ones(4).half()},
        "weight: cannot have the shape [-1, 64]": {"n": -1},
        "weight: cannot have the shape [4611686018427387904, 64]": {"n": 1 << 62},
        "x: has no dimension": {"x": torch.ones(())},
    }
    for message, arguments in cases.items():
        refused(message, lambda arguments=arguments: linear(**arguments))
    nested = Weight(4, 64, nested=True)
    wrong = (nested.parts[1], nested.parts[2][:255].clone(), nested.parts[3])
    message = "nested_quant_map: has 255 values, and 256 weights need 256"
    refused(message, lambda: linear(absmax=nested.parts[0], nested=wrong))
    refused(
        "weights: is torch.float64, not torch.float32, bfloat16 or float16",
        ops.quantize_4bit, torch.ones(64).double(), 64, "nf4",
    )  # fmt: skip
    codes, scb = ops.quantize_int8(w.original)
    message = "x: has the shape [1, 65], and the weight needs 64 columns"
    refused(message, ops.linear_int8, torch.ones(1, 65), codes, scb, None)
    refused("absmax: has 3 values, and the weight has 4 rows", ops.linear_int8, x, codes, scb[1:].clone(), None)
    refused("weight: is torch.uint8, not torch.int8", ops.linear_int8, x, codes.view(torch.uint8), scb, None)
    message = "weights: has the shape [64], not two dimensions"
    refused(message, ops.quantize_int8, torch.ones(64))
    refused(
        "shape: is too large",
        ops.dequantize_4bit, w.packed, absmax, *nothing, [1 << 40, 1 << 40], 64, "nf4", torch.float32,
    )  # fmt: skip
