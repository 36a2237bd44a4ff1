"""Layers that can't run one at a time are found out: what is between them, what they hand on, what they keep."""

import pytest
import tiny
import torch
import transformers
from nibble.calibrate import job
from nibble.calibrate.products import Products, Weights
from nibble.calibrate.stack import Stack, Unsuitable

TOKENS = torch.ones(2, 3, 4)


class Layer(torch.nn.Module):
    def __init__(self, scale=2.0, members=0):
        super().__init__()
        self.scale, self.members = scale, members

    def forward(self, hidden_states, *others, **named):
        hidden = hidden_states * self.scale
        return (hidden, *[None] * (self.members - 1)) if self.members else hidden


def stack(*layers):
    return Stack("layers", torch.nn.ModuleList(layers))


def through(stack, between=lambda hidden: hidden, **named):
    """What a model does: each layer gets what the one before returned."""

    def call():
        hidden = TOKENS + 1
        for layer in stack.layers:
            output = layer(hidden, **named)
            hidden = between(output if isinstance(output, torch.Tensor) else output[0])
        return hidden

    return call


@pytest.mark.parametrize("members", [0, 1, 3])
def test_layers_by_themselves(members):
    """They return tensors, or tuples, of which a model takes the first member."""
    ours = stack(Layer(2.0, members), Layer(3.0, members), Layer(5.0, members))
    call, seen = through(ours), []
    ours.compare(call)
    ours.returned = []
    hidden = ours.before(call)
    assert torch.equal(hidden, TOKENS + 1)
    for index, factor in enumerate((2, 6, 30)):
        hidden = ours.run(index, call, hidden)
        assert torch.equal(hidden, factor * (TOKENS + 1))
    assert ours.returned == [members] * 3
    ours.after(lambda: seen.append(call()), hidden)
    assert torch.equal(seen[0], 30 * (TOKENS + 1))
    assert all("forward" not in vars(layer) for layer in ours.layers)
    assert torch.equal(call(), 30 * (TOKENS + 1))


def test_layers_that_are_called_by_name():
    ours = stack(Layer(2.0), Layer(3.0))

    def call():
        hidden = TOKENS
        for layer in ours.layers:
            hidden = layer(hidden_states=hidden, mask=None)

    ours.compare(call)
    assert torch.equal(ours.run(0, call, TOKENS), 2 * TOKENS)


def refused(ours, call, text):
    with pytest.raises(Unsuitable, match=text):
        ours.compare(call)
    ours.returned = []
    with pytest.raises(Unsuitable, match=text):  # without the comparison too, where no whole pass is possible
        hidden = ours.before(call)
        for index in range(len(ours)):
            hidden = ours.run(index, call, hidden)


def test_what_is_between_layers():
    ours = stack(Layer(), Layer())
    call = through(ours, lambda hidden: hidden + 0)
    refused(ours, call, "hidden states change between 'layers.0' and the next layer")


def test_layers_in_another_order():
    ours = stack(Layer(), Layer(), Layer())

    def call():
        hidden = TOKENS
        for index in (0, 2, 1):
            hidden = ours.layers[index](hidden)

    refused(ours, call, "the layers of 'layers' are not called in their order")


def test_a_layer_that_is_left_out():
    ours = stack(Layer(), Layer())
    with pytest.raises(Unsuitable, match="1 calls of the 2 layers of 'layers' in a pass"):
        ours.compare(lambda: ours.layers[0](TOKENS))
    ours.run(0, lambda: ours.layers[0](TOKENS), TOKENS)
    with pytest.raises(Unsuitable, match="a pass did not reach 'layers.1'"):
        ours.run(1, lambda: ours.layers[0](TOKENS), TOKENS)


@pytest.mark.parametrize("value", [{"a": 1}, [], object(), (TOKENS, [])])
def test_something_that_a_layer_could_keep_things_in(value):
    ours = stack(Layer(), Layer())
    refused(ours, through(ours, kept=value), "'layers.0' takes 'kept', a ")


def test_a_layer_that_returns_more():
    class More(Layer):
        def forward(self, hidden_states):
            return hidden_states, hidden_states

    ours = stack(More(), Layer())
    refused(ours, through(ours), "'layers.0' returns more than hidden states")


def test_a_layer_that_makes_another_shape():
    class Shorter(Layer):
        def forward(self, hidden_states):
            return hidden_states[..., :2]

    ours = stack(Shorter(), Layer())
    refused(ours, through(ours), r"'layers.0' makes \[2, 3, 2\] of \[2, 3, 4\]")


def test_a_layer_without_hidden_states():
    ours = stack(Layer())
    refused(ours, lambda: ours.layers[0](5), "a layer is called without hidden states")


def test_a_layer_that_looks_at_another_one():
    """No argument shows it: the comparison with a whole pass does."""

    class Keeps(Layer):
        def forward(self, hidden_states):
            calls.append(None)
            return hidden_states * len(calls)

    calls = []
    ours = stack(Keeps(), Keeps())
    with pytest.raises(Unsuitable, match="'layers.0' gives something else when it runs alone"):
        ours.compare(through(ours))


def test_a_model_whose_layers_cannot_run_alone(tmp_path, monkeypatch):
    """All of it runs at once, with the same statistics; loaded a layer at a time it is refused."""
    model, text = tiny.save(tmp_path / "model", "Llama"), tiny.write(tmp_path / "text")
    alone = tiny.calibrated(model, text, tmp_path / "alone", "--second-moments", "--sequences", 4)

    def cannot(self, index, hidden, output):
        raise Unsuitable(f"layer {index} is odd")

    monkeypatch.setattr(Stack, "_output", cannot)
    whole = tiny.calibrated(model, text, tmp_path / "whole", "--second-moments", "--sequences", 4)
    assert {input.file for input in whole.inputs.values()} == {"whole.safetensors"}
    assert whole.weights == alone.weights
    for name in alone.inputs:
        assert (whole.second_moment(name) == alone.second_moment(name)).all()
        assert (whole.mean_square(name) == alone.mean_square(name)).all()
    line = tiny.fails(3, model, "--text", text, "--out", tmp_path / "out", "--sequences", 4, "--layer-by-layer")
    assert line == f"{model}: its layers can't run one at a time: layer 0 is odd"


def test_hidden_states_that_are_no_sequences(tmp_path, monkeypatch):
    """The whole model at once, too."""
    model, text = tiny.save(tmp_path / "model", "Llama"), tiny.write(tmp_path / "text")
    monkeypatch.setattr(Stack, "before", lambda self, call: torch.ones(6, 4))
    found = tiny.calibrated(model, text, tmp_path / "out", "--sequences", 2)
    assert {input.file for input in found.inputs.values()} == {"whole.safetensors"}


def test_hidden_states_of_another_shape():
    with pytest.raises(Unsuitable, match=r"hidden states \[6, 4\] of 2 sequences of 3 tokens"):
        job.Calibration._hidden([[1, 2, 3]] * 2, torch.ones(6, 4))
    with pytest.raises(Unsuitable, match=r"hidden states \[3, 2, 4\] of 2 sequences of 3 tokens"):
        job.Calibration._hidden([[1, 2, 3]] * 2, torch.ones(3, 2, 4))


def test_transformers_4_loads_no_single_layers(tmp_path, monkeypatch):
    model, text = tiny.save(tmp_path / "model", "Llama"), tiny.write(tmp_path / "text")
    monkeypatch.delattr(transformers.modeling_utils, "accelerate_dispatch")
    line = tiny.fails(3, model, "--text", text, "--out", tmp_path / "out", "--layer-by-layer")
    assert "its layers can't run one at a time: transformers " in line and "can't load them so; 5.23 can" in line
    tiny.calibrated(model, text, tmp_path / "out", "--sequences", 2)


class Seen:
    def __init__(self):
        self.products = []

    def add(self, weight, x):
        self.products.append((weight, tuple(x.shape)))


def test_which_products_count():
    """Those of a whole matrix, however it is multiplied, and of a whole expert; not of a part, or by another one."""
    w, memory, seen = torch.randn(4, 4), torch.randn(5, 6, 4), Seen()
    experts = memory[:3]
    x, functional = torch.randn(5, 4), torch.nn.functional
    with Products(Weights([("w", w), ("e", experts), ("bias", torch.ones(4))]), seen, set()):
        functional.linear(x, w)
        functional.linear(input=x, weight=w, bias=torch.ones(4))
        torch.addmm(torch.ones(4), x, w)
        x @ w
        x.matmul(w)
        torch.matmul(x, other=w.T)
        torch.mm(x, w)
        x.mm(w)
        functional.linear(x, experts[2])
        x @ experts[1].T
        counted = len(seen.products)
        functional.linear(x, w[:2])
        functional.linear(x, w[2:])
        functional.linear(x, experts[1][:3])
        functional.linear(x, torch.randn(4, 4))
        functional.linear(x, memory[4])
        functional.linear(x, experts.view(18, 4)[3:9])
        functional.linear(x, experts.view(18, 4))
        w @ torch.randn(4, 5)
        x * 2
    functional.linear(x, w)
    assert counted == len(seen.products)
    assert seen.products == [("w", (5, 4))] * 8 + [("e.2", (5, 4)), ("e.1", (5, 4))]
