"""Weights that stand where a tensor stood: each function gives what it gives with the dequantized weight."""

import pytest
import torch
import torch.nn.functional as F
from nibble.nn import ExpertWeights, Linear4bit, LinearInt8, QuantizedWeight

LAYERS = {
    "nf4": lambda linear: Linear4bit.from_linear(linear),
    "nf4, plain absmax": lambda linear: Linear4bit.from_linear(linear, compress_statistics=False),
    "fp4, blocksize 128": lambda linear: Linear4bit.from_linear(linear, "fp4", 128),
    "int8": LinearInt8.from_linear,
}


def weight(kind, *rows, columns=80):
    torch.manual_seed(0)
    linears = [torch.nn.Linear(columns, n, bias=False) for n in rows]
    return QuantizedWeight([LAYERS[kind](linear) for linear in linears], torch.float32)


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("rows", [(96,), (32, 64)])
def test_products(kind, rows):
    w = weight(kind, *rows)
    plain, x, z, bias = w.dequantize(), torch.randn(5, 80), torch.randn(5, 96), torch.randn(96)
    torch.testing.assert_close(F.linear(x, w), F.linear(x, plain))
    torch.testing.assert_close(F.linear(x, w, bias), F.linear(x, plain, bias))
    torch.testing.assert_close(z @ w, z @ plain)
    torch.testing.assert_close(torch.matmul(z, w), z @ plain)


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("columns", [64, 80, 33])
def test_rows_are_those_of_the_weight(kind, columns):
    w = weight(kind, 37, columns=columns)
    ids = torch.tensor([[36, 0, 1], [7, 36, 7]])
    assert torch.equal(F.embedding(ids, w), w.dequantize()[ids])


# Whisper takes the rows of its positions by a slice in the encoder, by their numbers in the decoder.
@pytest.mark.parametrize("rows", [(37,), (30, 7)])
def test_rows_by_their_numbers(rows, monkeypatch):
    w = weight("nf4", *rows)
    plain = w.dequantize()
    assert len(w) == 37
    tensors = torch.tensor([3, -1]), torch.tensor(2), plain[:, 0] > 0
    for index in (5, -1, slice(3, 9), slice(None, None, 7), (slice(2, 4), 3), None, *tensors):
        assert torch.equal(w[index], plain[index]), index
    assert torch.equal(torch.stack(list(w)), plain)
    with pytest.raises(IndexError):
        w[37]
    if len(rows) == 1:
        monkeypatch.setattr(QuantizedWeight, "dequantize", None)  # only the rows are decoded
        ids = torch.tensor([[3, -1], [-37, 36]])
        assert torch.equal(w[3:9], plain[3:9]) and torch.equal(w[ids], plain[ids])
    with pytest.raises(IndexError):
        w[torch.tensor([-38])]


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("rows", [(64,), (32, 32)])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_rows_that_the_weight_lacks_are_refused(kind, rows, dtype):
    w = weight(kind, *rows)
    for row in (64, -1, 2**31 - 1):
        with pytest.raises(IndexError, match="out of range"):
            F.embedding(torch.tensor([0, row], dtype=dtype), w)


@pytest.mark.parametrize("kind", LAYERS)
def test_rows_compile_as_one_graph(kind):
    torch.compiler.reset()
    layer = weight(kind, 64).layers[0]
    compiled = torch.compile(layer.dequantize_rows, fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (torch.tensor([63, 0, 5]), torch.tensor([1, 62])):
        assert torch.equal(compiled(rows), layer.dequantize_rows(rows))


def test_any_other_function_gets_the_dequantized_weight():
    w = weight("nf4", 32)
    plain = w.dequantize()
    assert torch.equal(torch.cat([w, w]), torch.cat([plain, plain]))
    assert torch.equal(torch.sum(input=w), plain.sum())


class Lookup(torch.nn.Module):
    """A module whose weight is quantized, as in a model."""

    def __init__(self):
        super().__init__()
        self.weight = weight("nf4", 32)
        self.norm = torch.nn.Parameter(torch.ones(80))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_the_type_follows_that_of_the_model(dtype):
    model = Lookup()
    assert set(model.state_dict()) == {"norm", *(f"weight.{name}" for name in model.weight.state_dict())}
    assert not any(name.endswith("like") for name in model.state_dict())
    model.load_state_dict(model.state_dict())
    with pytest.raises(RuntimeError, match="Unexpected key.*weight.absmax"):
        model.load_state_dict(model.state_dict() | {"weight.absmax": torch.ones(1)})
    model.to(dtype)
    experts = ExpertWeights([model.weight])
    assert model.weight.dtype == experts.dtype == model.weight.dequantize().dtype == dtype
    assert F.embedding(torch.tensor([3]), model.weight).dtype == dtype


# peft casts all 16-bit parameters to fp32, one by one, before an adapter is trained.
def test_the_type_follows_that_of_the_parameters():
    model = Lookup().to(torch.bfloat16)
    for parameter in model.parameters():
        if parameter.dtype == torch.bfloat16:
            parameter.data = parameter.data.to(torch.float32)
    assert model.weight.dtype == F.embedding(torch.tensor([3]), model.weight).dtype == torch.float32


@pytest.mark.parametrize("kind", LAYERS)
def test_products_from_the_right_have_the_types_of_those_from_the_left(kind):
    w = weight(kind, 96)
    x, z, bias = torch.randn(5, 80), torch.randn(5, 96), torch.randn(96)
    in_bf16 = z.bfloat16() @ w.dequantize().bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        assert (z @ w).dtype == F.linear(x, w).dtype == F.linear(x, w, bias).dtype == torch.bfloat16
        torch.testing.assert_close(z @ w, in_bf16, rtol=0.05, atol=0.05)
    w.layers[0].compute_dtype = torch.bfloat16
    product = z @ w
    assert product.dtype == F.linear(x, w).dtype == torch.float32
    assert torch.equal(product, (z.bfloat16() @ w).float())  # x was rounded to what is computed in


def test_experts_come_one_by_one():
    experts = ExpertWeights([weight("nf4", 32), weight("nf4", 32)])
    assert experts.shape == (2, 32, 80) and experts.ndim == 3 and len(experts) == 2
    assert experts[torch.tensor(1)] is experts[1]
    with pytest.raises(TypeError, match='2 of them are asked for at once.*experts_implementation="eager"'):
        experts[torch.tensor([0, 1])]


def test_what_else_a_tensor_has_is_refused():
    w = weight("nf4", 32)
    assert not hasattr(w, "data") and not hasattr(QuantizedWeight.__new__(QuantizedWeight), "data")
    with pytest.raises(AttributeError, match=r"QuantizedWeight \[32, 80\]: has no 'data': its codes are frozen"):
        w.data.normal_()
    with pytest.raises(AttributeError, match="ExpertWeights .* has no 'transpose': .*experts_implementation"):
        ExpertWeights([w]).transpose(0, 1)


def test_layers_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"layers: have \[64, 80\] columns"):
        QuantizedWeight([*weight("nf4", 32).layers, *weight("nf4", 32, columns=64).layers], torch.float32)
    with pytest.raises(ValueError, match="experts: have the shapes"):
        ExpertWeights([weight("nf4", 32), weight("nf4", 16)])
    with pytest.raises(ValueError, match="x: has 5 columns, and the weight 32 rows"):
        torch.randn(2, 5) @ weight("nf4", 32)
