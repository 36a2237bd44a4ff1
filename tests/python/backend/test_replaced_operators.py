"""torch.ops.bitsandbytes with nibble behind: what is replaced, when, and that it is right."""

import subprocess
import sys

import pytest
import torch

bitsandbytes = pytest.importorskip("bitsandbytes")
from nibble import backend

ops = torch.ops.bitsandbytes


@pytest.fixture
def enabled():
    assert backend.enable()
    yield
    backend.disable()


def definition(packed, absmax, code, blocksize, shape):
    codes = torch.stack((packed.flatten() >> 4, packed.flatten() & 15), 1).flatten()[: shape[0] * shape[1]]
    return (code[codes.long()] * absmax[torch.arange(codes.numel()) // blocksize]).view(shape)


# Rows of a multiple of 16 weights that are no whole blocks: bitsandbytes 0.50.2 takes the absmax of other blocks there
# on processors with AVX-512.
@pytest.mark.parametrize("shape", [(64, 96), (33, 80), (128, 48), (7, 129), (16, 256)])
@pytest.mark.parametrize("quant_type", ["nf4", "fp4"])
@pytest.mark.parametrize("blocksize", [64, 128])
def test_dequantize_is_right_for_rows_of_any_length(enabled, shape, quant_type, blocksize):
    torch.manual_seed(0)
    packed, state = bitsandbytes.functional.quantize_4bit(
        torch.randn(shape), blocksize=blocksize, quant_type=quant_type
    )
    exact = definition(packed, state.absmax, state.code, blocksize, shape)
    assert torch.equal(bitsandbytes.functional.dequantize_4bit(packed, state), exact)
    out = torch.empty(shape)
    bitsandbytes.functional.dequantize_4bit(packed, state, out=out)
    assert torch.equal(out, exact)
    x = torch.randn(3, shape[1])
    torch.testing.assert_close(bitsandbytes.matmul_4bit(x, packed, state), x @ exact.T)
    y = bitsandbytes.functional.gemv_4bit(x[:1], packed.t(), state=state)
    torch.testing.assert_close(y, x[:1] @ exact.T)


def test_results_of_layers_can_be_changed_in_place(enabled):
    layer = bitsandbytes.nn.Linear4bit(64, 32, quant_type="nf4", compute_dtype=torch.float32).to("cpu")
    y = layer(torch.randn(2, 3, 64, requires_grad=True))
    y += 1
    y.sum().backward()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_offset_of_nested_absmax_may_have_another_type(enabled, dtype):
    packed, state = bitsandbytes.functional.quantize_4bit(torch.randn(32, 64), compress_statistics=True)
    exact = bitsandbytes.functional.dequantize_4bit(packed, state)
    state.offset = state.offset.to(dtype)
    torch.testing.assert_close(bitsandbytes.matmul_4bit(torch.eye(64), packed, state), exact.T, rtol=0.01, atol=0.01)


def test_parts_that_are_not_contiguous_and_absmax_in_16_bits(enabled):
    packed, state = bitsandbytes.functional.quantize_4bit(torch.randn(32, 64), quant_type="nf4")
    strided = torch.cat((packed, packed), 1)[:, :1]
    absmax = state.absmax.bfloat16()
    exact = definition(packed, absmax.float(), state.code, 64, (32, 64))
    strided_absmax = torch.stack((absmax, absmax), 1)[:, 0]
    for a in (absmax, strided_absmax):
        got = ops.dequantize_4bit(strided, a, 64, "nf4", (32, 64), torch.float32)
        assert torch.equal(got, exact)
    y = ops.gemm_4bit(torch.eye(64), strided, (32, 64), state.absmax, 64, "nf4")
    assert torch.equal(y, definition(packed, state.absmax, state.code, 64, (32, 64)).T)


@pytest.mark.parametrize("storage", [torch.bfloat16, torch.float32])
def test_codes_may_be_stored_in_another_type(enabled, storage):
    values = torch.randn(32, 64)
    packed, absmax = ops.quantize_4bit(values, 64, "nf4", torch.uint8)
    stored, same = ops.quantize_4bit(values, 64, "nf4", storage)
    assert stored.dtype == storage and torch.equal(stored.view(-1).view(torch.uint8), packed.view(-1))
    assert torch.equal(same, absmax)


def test_a_view_with_gaps_is_quantized_as_its_copy(enabled):
    view = torch.randn(96, 160)[:, ::2]
    codes, state = bitsandbytes.functional.quantize_blockwise(view, blocksize=256)
    of_copy, state_of_copy = bitsandbytes.functional.quantize_blockwise(view.contiguous(), blocksize=256)
    assert torch.equal(codes, of_copy) and torch.equal(state.absmax, state_of_copy.absmax)


def test_layers_that_bitsandbytes_packed_before_stay_its_own():
    if not bitsandbytes.nn.modules.has_avx512bf16():
        pytest.skip("bitsandbytes packs weights on processors with AVX512-BF16 only")
    layer = bitsandbytes.nn.Linear4bit(64, 64, quant_type="nf4", compress_statistics=False).to("cpu").eval()
    x = torch.randn(3, 64)
    with torch.no_grad():
        before = layer(x)
        backend.enable()
        after = layer(x)
        backend.disable()
    assert torch.equal(after, before)


@pytest.mark.parametrize("threshold", [0.0, 6.0])
@pytest.mark.parametrize("rows", [1, 4])
def test_activations_with_outliers_are_quantized_as_bitsandbytes_does(threshold, rows):
    x = torch.randn(rows, 64).half()
    x[0, [3, 40]] = 20.0
    results = []
    for enable in (False, True):
        if enable:
            backend.enable()
        results.append(ops.int8_vectorwise_quant(x, threshold))
        backend.disable()
    for theirs, ours in zip(*results, strict=True):
        assert (theirs is None and ours is None) or torch.equal(theirs, ours)


def test_packed_layers_keep_double_quantization(enabled):
    """In eval mode, bitsandbytes packs weights anew on processors with AVX512-BF16, which rounds absmax to bfloat16."""
    torch.manual_seed(0)
    layer = bitsandbytes.nn.Linear4bit(96, 64, quant_type="nf4", compress_statistics=True).to("cpu").eval()
    before = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    weight = bitsandbytes.functional.dequantize_4bit(layer.weight.data, layer.weight.quant_state)
    x = torch.randn(3, 96)
    with torch.no_grad():
        torch.testing.assert_close(layer(x), torch.nn.functional.linear(x, weight, layer.bias))
    after = layer.state_dict()
    assert set(after) == set(before) and all(torch.equal(after[name], before[name]) for name in before)


def test_int8_products_have_the_factor_of_the_definition(enabled):
    sums, rows, columns = torch.full((1, 4), 127 * 127, dtype=torch.int32), torch.ones(1), torch.ones(4)
    assert torch.equal(ops.int8_mm_dequant(sums, rows, columns, torch.float32, None), torch.ones(1, 4))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_activation_that_is_not_finite_reaches_the_result(enabled, value):
    x = torch.randn(4, 64).half()
    x[1, 2] = value
    codes, absmax, _ = ops.int8_vectorwise_quant(x)
    assert not torch.isfinite(absmax[1]) and torch.isfinite(absmax[[0, 2, 3]]).all()


def test_other_8_bit_codes_stay_those_of_bitsandbytes():
    values = torch.randn(512)
    for options in ({"blocksize": 64}, {"code": torch.linspace(-1, 1, 256), "blocksize": 256}):
        results = []
        for enable in (False, True):
            if enable:
                backend.enable()
            codes, state = bitsandbytes.functional.quantize_blockwise(values, **options)
            results.append((codes, bitsandbytes.functional.dequantize_blockwise(codes, state)))
            backend.disable()
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


# --- on and off ------------------------------------------------------------------------------------------------------


def runs_nibble():
    with torch.profiler.profile() as profile:
        bitsandbytes.functional.quantize_4bit(torch.randn(64))
    return "nibble::quantize_4bit" in {event.name for event in profile.events()}


def test_enable_and_disable():
    pack = bitsandbytes.nn.modules._convert_weight_packed_for_cpu
    assert not runs_nibble() and backend.replaced() == []
    for _ in range(2):
        assert backend.enable() and backend.enable()
        assert runs_nibble() and bitsandbytes.nn.modules._convert_weight_packed_for_cpu is not pack
        assert {"bitsandbytes::quantize_4bit", "bitsandbytes::gemm_4bit"} <= set(backend.replaced())
        backend.disable()
        backend.disable()
        assert not runs_nibble() and backend.replaced() == []
        assert bitsandbytes.nn.modules._convert_weight_packed_for_cpu is pack


def test_everything_that_can_be_replaced_is(enabled):
    """A changed signature in another release of bitsandbytes would leave an operator out without a word."""
    assert backend.replaced() == sorted(f"bitsandbytes::{name}" for name in backend._OPERATORS)


def test_the_variable_turns_it_off(monkeypatch):
    monkeypatch.setenv(backend.VARIABLE, "0")
    assert not backend.enable() and not runs_nibble()
    monkeypatch.setenv(backend.VARIABLE, "1")
    assert backend.enable() and runs_nibble()
    backend.disable()


@pytest.mark.parametrize("kind", [ImportError, RuntimeError, AttributeError])
def test_a_failure_does_not_keep_bitsandbytes_from_being_imported(monkeypatch, capsys, kind):
    def enable():
        raise kind("libnibble_torch.so: cannot be loaded")

    monkeypatch.setattr(backend, "enable", enable)
    backend.entry_point()
    assert capsys.readouterr().err == "nibble: bitsandbytes runs without it: libnibble_torch.so: cannot be loaded\n"


def test_the_default_device_does_not_matter():
    program = """
import torch
with torch.device("meta"):
    from nibble import backend
import bitsandbytes
assert backend.enable()
code = torch.ops.nibble.quant_map("nested")
codes, absmax = torch.ops.bitsandbytes.quantize_blockwise(torch.ones(256), code, 256)
values = torch.ops.bitsandbytes.dequantize_blockwise(codes, absmax, code, 256, torch.float32)
assert torch.equal(values, torch.ones(256))
"""
    subprocess.run([sys.executable, "-c", program], check=True)
