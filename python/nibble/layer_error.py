"""Which layer of a model loses it: the output of each layer against that of the same layer of REF, on the same tokens.

    relative RMSE = sqrt(sum (test - ref)^2 / sum ref^2)        SQNR = 10 log10(sum ref^2 / sum (test - ref)^2) dB

is measured twice. `so_far` compares the outputs as the two models run: what this layer and all before it did. `own`
feeds REF's input of the layer to TEST's: what this layer alone adds. Sums are in fp64, over all values of all tokens.

Memory: the outputs of all layers of TEST for one batch, layers x batch x context x width x 2 or 4 bytes.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

Arguments = tuple[Any, ...]
Keywords = dict[str, Any]
Call = tuple[Arguments, Keywords, Tensor]  # of a layer, and its output


class LayerError:
    """Sums over batches. `reference` and `test` are two models of one architecture."""

    def __init__(self, reference: Module, test: Module) -> None:
        self._reference, self._test = layers(reference), layers(test)
        if self._reference.keys() != self._test.keys() or width(reference) != width(test):
            raise ValueError("its layers are not those of the reference (--layer-batches 0 leaves them out)")
        self._sums = {name: [0.0, 0.0, 0.0] for name in self._reference}  # so far, own, REF's squares

    def add(self, run: Callable[[str], None], mask: Tensor | None = None) -> None:
        """run("reference") and run("test") pass one batch through a model, without a cache: TEST's layers run twice, and
        would find their own keys in it. mask [batch, tokens]: 0 is padding."""
        calls: dict[str, Call] = {}

        def keep(name: str, args: Arguments, kwargs: Keywords, out: Tensor) -> None:
            calls[name] = (args, kwargs, out)

        def compare(name: str, args: Arguments, kwargs: Keywords, out: Tensor) -> None:
            if name in calls:
                self._compare(name, args, kwargs, out, calls.pop(name), mask)

        with contextlib.ExitStack() as hooks:
            for name, layer in self._test.items():
                hooks.enter_context(hook(layer, functools.partial(keep, name)))
            run("test")
        with contextlib.ExitStack() as hooks:
            for name, layer in self._reference.items():
                hooks.enter_context(hook(layer, functools.partial(compare, name)))
            run("reference")

    def _compare(
        self,
        name: str,
        args: Arguments,
        kwargs: Keywords,
        expected: Tensor,
        call: Call,
        mask: Tensor | None,
    ) -> None:
        test_args, test_kwargs, so_far = call
        # Masks and positions stay TEST's own, in its types; only what goes through the layers is exchanged.
        if args:
            own = self._test[name](as_type(args[0], test_args[0]), *test_args[1:], **test_kwargs)
        else:
            states = as_type(kwargs["hidden_states"], test_kwargs["hidden_states"])
            own = self._test[name](**test_kwargs | {"hidden_states": states})
        for index, value in enumerate((so_far, first(own))):
            self._sums[name][index] += squares(value.to(expected.device), mask, expected)
        self._sums[name][2] += squares(expected, mask)

    def summary(self) -> list[dict[str, Any]]:
        """[{name, so_far, own}] in the order of the model, each {rel_rmse, sqnr_db}; the latter is None if exact."""
        return [{"name": name, "so_far": figures(so_far, signal), "own": figures(own, signal)}
                for name, (so_far, own, signal) in self._sums.items() if signal > 0]  # fmt: skip


def width(model: Module) -> int | None:
    return getattr(model.config.get_text_config(), "hidden_size", None)


def stack_of(model: Module) -> tuple[str, Module] | None:
    """(name, module) of the list of layers that config.json counts; None if there is no such list."""
    config = model.config.get_text_config()
    counts = {getattr(config, key, None) for key in ("num_hidden_layers", "n_layer", "num_layers", "n_layers")}
    stacks = [(name, module) for name, module in model.named_modules() if isinstance(module, torch.nn.ModuleList)]
    return next(((name, module) for name, module in stacks if len(module) in counts - {None}), None)


def layers(model: Module) -> dict[str, Module]:
    """{name: module}: input embeddings, the list of layers, output embeddings."""
    stack = stack_of(model)
    found: dict[str, Module] = {}
    for module in (model.get_input_embeddings(), model.get_output_embeddings()):
        found |= {name: module for name, other in model.named_modules() if other is module is not None}
    ordered = list(found.items())
    inside = [(f"{stack[0]}.{i}", module) for i, module in enumerate(stack[1])] if stack else []
    return dict(ordered[:1] + inside + ordered[1:])


@contextlib.contextmanager
def hook(layer: Module, seen: Callable[[Arguments, Keywords, Tensor], None]) -> Iterator[None]:
    """While it holds, seen(args, kwargs, output) is called after each forward pass of the layer."""
    handle = layer.register_forward_hook(lambda _, args, kwargs, out: seen(args, kwargs, first(out)), with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def first(output: Tensor | tuple[Tensor, ...]) -> Tensor:
    """Hidden states of a layer that may return a tuple with them."""
    return output if isinstance(output, torch.Tensor) else output[0]


def as_type(value: Tensor, like: Tensor) -> Tensor:
    return value.to(like.device, like.dtype) if value.is_floating_point() else value.to(like.device)


def squares(value: Tensor, mask: Tensor | None, minus: Tensor | None = None) -> float:
    """The sum of squares over all tokens that are not padding."""
    difference = value.double() if minus is None else value.double() - minus.double()
    of_token = difference.square().sum(-1)
    return float((of_token if mask is None else of_token * mask.to(of_token.device)).sum())


def figures(error: float, signal: float) -> dict[str, float | None]:
    return {"rel_rmse": math.sqrt(error / signal), "sqnr_db": 10 * math.log10(signal / error) if error > 0 else None}
