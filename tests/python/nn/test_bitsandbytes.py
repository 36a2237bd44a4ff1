"""nibble's layers beside bitsandbytes' own: the same state dicts, and no larger error."""

import os
import subprocess
import sys

import pytest
import torch
from nibble import _library
from nibble.nn import Linear4bit, LinearInt8

bnb = pytest.importorskip("bitsandbytes")

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
FOUR_BIT = [(quant_type, nested) for quant_type in ("nf4", "fp4") for nested in (False, True)]


def their_4bit(quant_type, nested, storage=torch.uint8, in_features=256, out_features=96, dtype=torch.float32):
    torch.manual_seed(0)
    layer = bnb.nn.Linear4bit(
        in_features, out_features, quant_type=quant_type, compress_statistics=nested, quant_storage=storage
    )
    layer.weight.data = layer.weight.data.to(dtype)
    return layer.to("cpu")  # quantizes it


def their_int8(in_features=256, out_features=96, threshold=6.0):
    torch.manual_seed(0)
    layer = bnb.nn.Linear8bitLt(in_features, out_features, has_fp16_weights=False, threshold=threshold)
    layer.weight.data[5, 7] = 3.0  # an outlier among the weights
    return layer.to("cpu")


def exact_4bit(layer):
    """The weight that the codes of bitsandbytes stand for, in float64."""
    state = layer.weight.quant_state
    absmax = state.absmax.double()
    if state.nested:
        blocks = torch.arange(absmax.numel()) // state.state2.blocksize
        absmax = state.state2.code.double()[state.absmax.long()] * state.state2.absmax.double()[blocks]
        absmax = absmax + state.offset.double()
    packed = layer.weight.data.view(-1).view(torch.uint8)
    codes = torch.stack((packed >> 4, packed & 15), 1).flatten()
    values = state.code.double()[codes.long()] * absmax[torch.arange(codes.numel()) // state.blocksize]
    return values.view(*state.shape)


def exact_int8(state):
    return state["weight"].double() * state["SCB"].double()[:, None] / 127


def error(y, exact):
    return (y.double() - exact).square().mean().sqrt().item()


def ours(theirs):
    kind = Linear4bit if isinstance(theirs, bnb.nn.Linear4bit) else LinearInt8
    return kind.from_state(theirs.state_dict())


# --- errors -----------------------------------------------------------------------------------------------------------


SHAPES = [(96, 256), (64, 64), (320, 320), (128, 512), (80, 40)]  # [n, k]


def squares(module, x, dy, weight):
    """The mean squared errors of a product and of its gradient against float64."""
    leaf = x.clone().requires_grad_()
    y = module(leaf)
    y.backward(dy)
    assert y.dtype == leaf.grad.dtype == x.dtype
    bias = module.bias.double()
    return torch.stack([
        (y.double() - (x.double() @ weight.T + bias)).square().mean(),
        (leaf.grad.double() - dy.double() @ weight).square().mean(),
    ]).detach()  # fmt: skip


def assert_no_larger(theirs, weight, make_x):
    """The errors of several random inputs together: one alone has too few numbers."""
    layer, (n, _) = ours(theirs), weight.shape
    of_ours, of_theirs = torch.zeros(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    for seed in range(5):
        torch.manual_seed(seed)
        x = make_x()
        dy = torch.randn(len(x), n).to(x.dtype)
        of_ours += squares(layer, x, dy, weight)
        of_theirs += squares(theirs, x, dy, weight)
    assert (of_ours.sqrt() <= 1.1 * of_theirs.sqrt()).all(), (of_ours / of_theirs).sqrt()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows", [1, 2, 5, 40])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("quant_type", "nested"), FOUR_BIT)
def test_the_error_of_4bit_is_at_most_theirs(quant_type, nested, dtype, rows, shape):
    # A new layer trains: then it does not repack its weight.
    theirs = their_4bit(quant_type, nested, in_features=shape[1], out_features=shape[0])
    assert_no_larger(theirs, exact_4bit(theirs), lambda: torch.randn(rows, shape[1]).to(dtype))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("threshold", [0.0, 6.0])
@pytest.mark.parametrize("rows", [1, 2, 5, 40])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_error_of_int8_is_at_most_theirs(dtype, rows, threshold, shape):
    theirs = their_int8(in_features=shape[1], out_features=shape[0], threshold=threshold)

    def make_x():
        x = torch.randn(rows, shape[1])
        x[:, [3, 30]] *= 20  # outliers, which their layer multiplies in 16 bits if there is a threshold
        return x.to(dtype)

    assert_no_larger(theirs, exact_int8(theirs.state_dict()), make_x)


# torch's own libraries have to use AVX2, too: with longer vectors, less is added up one after the other.
def test_no_error_is_larger_with_avx2():
    if "AVX2" not in _library.cpu_targets()[0]:
        pytest.skip("the processor or the build has no AVX2")
    environment = os.environ | {
        "NIBBLE_CPU_TARGET": "AVX2",
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", "test_the_error_of"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-2000:]


# --- state dicts --------------------------------------------------------------------------------------------------


def same_bytes(a, b):
    return a.dtype == b.dtype and torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("storage", [torch.uint8, torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("quant_type", "nested"), FOUR_BIT)
def test_their_4bit_state_loads(quant_type, nested, storage, assign):
    theirs = their_4bit(quant_type, nested, storage, dtype=torch.bfloat16)
    state = theirs.state_dict()
    # The layer takes quant_type and nesting from the state dict, whatever it was made with.
    layer = Linear4bit(256, 96, quant_type="fp4", blocksize=128)
    assert not any(layer.load_state_dict(state, assign=assign))
    assert (layer.quant_type, layer.blocksize, layer.weight_dtype) == (quant_type, 64, torch.bfloat16)
    torch.testing.assert_close(layer.dequantize(torch.float32).double(), exact_4bit(theirs), rtol=1e-6, atol=0)
    assert (layer.weight.data_ptr() == state["weight"].data_ptr()) == assign


@pytest.mark.parametrize(("quant_type", "nested"), FOUR_BIT)
def test_our_4bit_state_is_theirs(quant_type, nested):
    theirs = their_4bit(quant_type, nested).state_dict()
    layer = Linear4bit.from_state(theirs)
    state = layer.state_dict()
    assert set(state) == set(theirs)
    key = f"weight.quant_state.bitsandbytes__{quant_type}"
    assert all(same_bytes(state[name], theirs[name]) for name in theirs if name != key)
    # Back into bitsandbytes, as transformers does it.
    parts = {name: tensor for name, tensor in state.items() if name not in ("weight", "bias")}
    weight = bnb.nn.Params4bit.from_prequantized(state["weight"], parts, device="cpu")
    back = bnb.functional.dequantize_4bit(weight.data, weight.quant_state)
    assert torch.equal(back, layer.dequantize(torch.float32))


def test_int8_states_in_both_directions():
    theirs = their_int8()
    layer = LinearInt8(256, 96)
    assert not any(layer.load_state_dict(theirs.state_dict()))
    state = layer.state_dict()
    assert set(state) == set(theirs.state_dict())
    assert all(same_bytes(state[name], tensor) for name, tensor in theirs.state_dict().items())
    other = bnb.nn.Linear8bitLt(256, 96, has_fp16_weights=False, threshold=6.0).to("cpu")
    other.load_state_dict(state)
    x = torch.randn(3, 256)
    with torch.no_grad():
        assert torch.equal(other(x), theirs(x))
