"""Linear4bit and LinearInt8 as layers of torch: traced, differentiated, cast, copied, saved, recomputed."""

import copy
import io
import pickle

import pytest
import torch
from nibble.nn import Linear4bit, LinearInt8
from torch.utils.checkpoint import checkpoint

KINDS = {
    "nf4": lambda linear, **options: Linear4bit.from_linear(linear, **options),
    "nf4, plain absmax": lambda linear, **options: Linear4bit.from_linear(linear, compress_statistics=False, **options),
    "fp4": lambda linear, **options: Linear4bit.from_linear(linear, "fp4", 128, **options),
    "int8": lambda linear, **options: LinearInt8.from_linear(linear, **options),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def layer_of(kind, in_features=80, out_features=48, bias=True, **options):
    torch.manual_seed(0)
    return KINDS[kind](torch.nn.Linear(in_features, out_features, bias), **options)


def result_and_gradients(function, layer, x):
    layer.zero_grad(set_to_none=True)
    x = x.clone().requires_grad_()
    y = function(x)
    y.square().sum().backward()
    return y.detach(), x.grad, layer.bias.grad


def assert_same(a, b):
    for left, right in zip(a, b, strict=True):
        torch.testing.assert_close(left, right)


@every_kind
def test_forward_and_gradients_are_those_of_the_dequantized_weight(kind):
    layer, x = layer_of(kind), torch.randn(2, 3, 80)
    weight = layer.dequantize(torch.float32)
    expected = result_and_gradients(lambda x: torch.nn.functional.linear(x, weight, layer.bias), layer, x)
    assert_same(result_and_gradients(layer, layer, x), expected)
    assert layer.weight.grad is None and not layer.weight.requires_grad


@every_kind
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles_as_one_graph(kind, dynamic):
    torch.compiler.reset()
    layer = layer_of(kind)
    compiled = torch.compile(layer, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for rows in (3, 5):
        x = torch.randn(rows, 80)
        assert_same(result_and_gradients(compiled, layer, x), result_and_gradients(layer, layer, x))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(compiled(x), layer(x)) and compiled(x).dtype == torch.bfloat16


def test_compiles_where_availability_cannot_be_traced(monkeypatch):
    # As with torch 2.11.
    monkeypatch.setattr(torch.amp, "is_autocast_available", torch._dynamo.disable(torch.amp.is_autocast_available))
    torch.compiler.reset()
    layer, x = layer_of("nf4"), torch.randn(3, 80)
    assert torch.equal(torch.compile(layer, fullgraph=True, backend="aot_eager")(x), layer(x))


@every_kind
def test_gradcheck(kind):
    layer = layer_of(kind, 9, 5).double()
    x = torch.randn(2, 9, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda x, bias: torch.func.functional_call(layer, {"bias": bias}, x), (x, layer.bias)
    )
    assert torch.autograd.gradgradcheck(layer, x, fast_mode=True)


@every_kind
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_and_compute_dtype(kind, dtype):
    layer, x = layer_of(kind), torch.randn(3, 80)
    rounded = layer_of(kind).to(dtype)(x.to(dtype))
    with torch.autocast("cpu", dtype):
        y, gradient, bias_gradient = result_and_gradients(layer, layer, x)
        assert layer(x.double()).dtype == torch.float64  # as torch.nn.Linear
    torch.testing.assert_close(y, rounded, rtol=0, atol=0)
    assert gradient.dtype == bias_gradient.dtype == torch.float32
    # As in bitsandbytes, the result has the type of x.
    layer = layer_of(kind, compute_dtype=dtype)
    torch.testing.assert_close(layer(x), rounded.float(), rtol=0, atol=0)
    with torch.autocast("cpu", torch.bfloat16 if dtype == torch.float16 else torch.float16):
        torch.testing.assert_close(layer(x), rounded.float(), rtol=0, atol=0)


@every_kind
def test_casts_are_for_the_bias_alone(kind):
    before = {name: tensor.clone() for name, tensor in layer_of(kind).state_dict().items()}
    for cast in (lambda layer: layer.to(torch.bfloat16), lambda layer: layer.half(), lambda layer: layer.double()):
        layer = cast(layer_of(kind))
        after = layer.state_dict()
        assert after.pop("bias").dtype == layer.bias.dtype != torch.float32
        assert all(torch.equal(after[name], before[name]) for name in after)
        y = layer(torch.ones(80, dtype=layer.bias.dtype))
        assert y.dtype == layer.bias.dtype


# GraLoRA, C3A and AdaLoRA of peft add to the result of the layer in place.
@every_kind
@pytest.mark.parametrize("shape", [(80,), (3, 80), (2, 3, 80)])
def test_results_can_be_changed_in_place(kind, shape):
    layer, x = layer_of(kind), torch.randn(shape, requires_grad=True)
    y = layer(x)
    expected = y.detach() + 1
    y += 1
    assert torch.equal(y, expected)
    y.sum().backward()
    assert x.grad.shape == shape
    x.grad += 1  # dx is no view, either


@every_kind
def test_moves_to_another_device(kind):
    layer = layer_of(kind).to("meta")
    assert layer(torch.ones(2, 80, device="meta")).shape == (2, 48)
    assert {t.device.type for t in (*layer.parameters(), *layer.buffers())} == {"meta"}
    types = {name: tensor.dtype for name, tensor in layer_of(kind).named_buffers()}
    assert {name: t.dtype for name, t in layer.to_empty(device="cpu").to(torch.float16).named_buffers()} == types


@every_kind
def test_copies(kind):
    layer, x = layer_of(kind), torch.randn(3, 80)
    expected = layer(x)
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    copies = {
        "deepcopy": copy.deepcopy(layer),
        "pickle": pickle.loads(pickle.dumps(layer)),
        "torch.save": torch.load(file, weights_only=False),
    }
    for name, other in copies.items():
        assert torch.equal(other(x), expected), name
        assert other.weight.data_ptr() != layer.weight.data_ptr(), name
        assert not other.weight.requires_grad and other.bias.requires_grad, name
        assert repr(other) == repr(layer), name


@every_kind
def test_a_saved_state_dict(kind):
    layer, x = layer_of(kind), torch.randn(3, 80)
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other = Linear4bit(80, 48) if "int8" not in kind else LinearInt8(80, 48)
    other.load_state_dict(torch.load(file))
    assert torch.equal(other(x), layer(x))
    assert repr(other) == repr(layer)


def test_layers_that_share_a_map_are_saved_apart():
    safetensors = pytest.importorskip("safetensors.torch")
    layer = layer_of("nf4")
    parts = (layer.nested_absmax.clone(), layer.nested_quant_map, layer.nested_offset)
    other = Linear4bit.from_parts(layer.weight.clone(), layer.absmax.clone(), shape=(48, 80), nested=parts)
    safetensors.save(torch.nn.ModuleList([layer, other]).state_dict())  # it refuses tensors that share memory


@every_kind
def test_inference_mode(kind):
    layer, x = layer_of(kind), torch.randn(3, 80)
    expected = layer(x)
    with torch.inference_mode():
        assert torch.equal(layer(x), expected) and layer(x).is_inference()
        made = layer_of(kind)  # tensors made in inference mode work only there
        assert torch.equal(made(x), expected)


@every_kind
@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing(kind, reentrant):
    model = torch.nn.Sequential(layer_of(kind), torch.nn.Tanh(), layer_of(kind, 48, 16))
    x = torch.randn(3, 80)
    expected = result_and_gradients(model, model[0], x)
    recomputed = result_and_gradients(lambda x: checkpoint(model, x, use_reentrant=reentrant), model[0], x)
    assert all(torch.equal(a, b) for a, b in zip(recomputed, expected, strict=True))


def test_no_activation_is_kept_for_the_weight():
    layer, kept = layer_of("nf4", bias=False), []
    x = torch.randn(3, 80, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.data_ptr()) or t, lambda t: t):
        layer(x)
    own = {t.data_ptr() for t in (*layer.parameters(), *layer.buffers())}
    assert kept and set(kept) <= own


@every_kind
def test_without_a_bias(kind):
    layer, x = layer_of(kind, bias=False), torch.randn(3, 80)
    assert layer.bias is None and "bias" not in layer.state_dict()
    torch.testing.assert_close(layer(x), x @ layer.dequantize(torch.float32).T)


@every_kind
def test_layers_on_the_meta_device_have_shapes_alone(kind):
    with torch.device("meta"):
        made = LinearInt8(80, 48) if kind == "int8" else Linear4bit(80, 48, compress_statistics="plain" not in kind)
        quantized = KINDS[kind](torch.nn.Linear(80, 48))
        for layer in (made, quantized):
            assert {tensor.device.type for tensor in (*layer.parameters(), *layer.buffers())} == {"meta"}
            assert layer(torch.empty(3, 80)).shape == (3, 48)
