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


def test_experts_come_one_by_one():
    experts = ExpertWeights([weight("nf4", 32), weight("nf4", 32)])
    assert experts.shape == (2, 32, 80) and experts.ndim == 3 and len(experts) == 2
    assert experts[torch.tensor(1)] is experts[1]
    with pytest.raises(TypeError, match='2 of them are asked for at once.*experts_implementation="eager"'):
        experts[torch.tensor([0, 1])]


def test_layers_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"layers: have \[64, 80\] columns"):
        QuantizedWeight([*weight("nf4", 32).layers, *weight("nf4", 32, columns=64).layers], torch.float32)
    with pytest.raises(ValueError, match="experts: have the shapes"):
        ExpertWeights([weight("nf4", 32), weight("nf4", 16)])
    with pytest.raises(ValueError, match="x: has 5 columns, and the weight 32 rows"):
        torch.randn(2, 5) @ weight("nf4", 32)
