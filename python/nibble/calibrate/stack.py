"""Runs a model's layers one at a time, each over all of the text, so that the sums and the weights of one layer are in
memory, and not those of the model.

The model's own forward() is called for every layer again: it makes the masks and positions that the layer is given.
Layers before the one that runs only hand on hidden states, and after that one the pass ends. This holds for layers that
take the hidden states of the layer before, unchanged, and nothing else that a layer made. What is seen to be otherwise
raises Unsuitable; what cannot be seen is found by compare().
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

PLAIN = (torch.Tensor, bool, int, float, str, torch.dtype, torch.device, type(None))


class Unsuitable(Exception):
    """The layers of this model can't be run one at a time, and why."""


class Reached(Exception):
    """Ends a pass at the layer that was asked for."""

    def __init__(self, hidden: Any):
        super().__init__()
        self.hidden = hidden


class Stack:
    """`layers`: the ModuleList. A `call` is a function that passes one batch through the model."""

    def __init__(self, name: str, layers: Any):
        self.name, self.layers = name, layers
        self.returned: list[int] = []
        """Of each layer that has run, how many members the tuple has that it returns; 0 for a tensor."""

    def __len__(self) -> int:
        return len(self.layers)

    def before(self, call: Callable[[], Any]) -> Any:
        """Runs what is before the layers. Returns the hidden states that the first one is given."""
        return self._pass(call, 0, None, lambda layer, hidden, args, kwargs: hidden)

    def run(self, index: int, call: Callable[[], Any], hidden: Any) -> Any:
        """Runs one layer on hidden states. All layers before it have run. Returns the hidden states after it."""

        def layer_alone(layer: Any, given: Any, args: Any, kwargs: Any) -> Any:
            args, kwargs = ((hidden, *args[1:]), kwargs) if args else (args, kwargs | {"hidden_states": hidden})
            return self._output(index, hidden, layer(*args, **kwargs))

        return self._pass(call, index, hidden, layer_alone)

    def after(self, call: Callable[[], Any], hidden: Any) -> None:
        """Runs what is after the layers (and what is before them) on the hidden states of the last one."""
        with self._replaced(len(self), hidden, None):
            call()

    def compare(self, call: Callable[[], Any]) -> None:
        """Runs one batch through the whole model, and each layer again by itself, which must give the same."""
        seen: list[tuple[Any, Any]] = []
        hooks = [layer.register_forward_hook(lambda _, args, kwargs, output: seen.append(
            (hidden_states(args, kwargs).clone(), first(output).clone())), with_kwargs=True)
            for layer in self.layers]  # fmt: skip
        try:
            call()
        finally:
            for hook in hooks:
                hook.remove()
        if len(seen) != len(self):
            raise Unsuitable(f"{len(seen)} calls of the {len(self)} layers of '{self.name}' in a pass")
        for index, (before, after) in enumerate(seen):
            found = self.run(index, call, before)
            largest = after.nan_to_num(0.0, 0.0, 0.0).abs().max().item()
            if not torch.allclose(found, after, rtol=1e-3, atol=1e-3 * largest, equal_nan=True):
                raise Unsuitable(f"'{self.name}.{index}' gives something else when it runs alone")

    def _pass(self, call: Callable[[], Any], target: int, hidden: Any, at_target: Callable[..., Any]) -> Any:
        with self._replaced(target, hidden, at_target):
            try:
                call()
            except Reached as reached:
                return reached.hidden
        raise Unsuitable(f"a pass did not reach '{self.name}.{target}'")

    @contextlib.contextmanager
    def _replaced(self, target: int, hidden: Any, at_target: Callable[..., Any] | None) -> Iterator[None]:
        """While it holds, the first layer hands on `hidden`, and so do all up to `target`."""
        calls = iter(range(target + 1))

        def replace(index: int, layer: Any) -> Callable[..., Any]:
            def forward(*args: Any, **kwargs: Any) -> Any:
                given = hidden_states(args, kwargs)
                if next(calls, None) != index:
                    raise Unsuitable(f"the layers of '{self.name}' are not called in their order")
                if index > 0 and given is not hidden:
                    raise Unsuitable(f"hidden states change between '{self.name}.{index - 1}' and the next layer")
                if index == target and at_target is not None:
                    self._check(index, args, kwargs)
                    raise Reached(at_target(layer, given, args, kwargs))
                members = self.returned[index]
                return hidden if members == 0 else (hidden, *[None] * (members - 1))

            return forward

        forwards = [layer.forward for layer in self.layers]
        for index, (layer, forward) in enumerate(zip(self.layers, forwards)):
            layer.forward = replace(index, forward)
        try:
            yield
        finally:
            for layer in self.layers:
                del layer.forward

    def _check(self, index: int, args: Any, kwargs: Any) -> None:
        """What a layer could keep something in for a later one, or was kept by an earlier one."""
        for name, value in (*enumerate(args), *kwargs.items()):
            members = value if isinstance(value, tuple) else (value,)
            if not all(isinstance(member, PLAIN) for member in members):
                raise Unsuitable(f"'{self.name}.{index}' takes '{name}', a {type(value).__name__}")

    def _output(self, index: int, hidden: Any, output: Any) -> Any:
        members = 0 if isinstance(output, torch.Tensor) else len(output)
        if members and any(isinstance(member, torch.Tensor) for member in output[1:]):
            raise Unsuitable(f"'{self.name}.{index}' returns more than hidden states")
        if first(output).shape != hidden.shape:
            raise Unsuitable(f"'{self.name}.{index}' makes {list(first(output).shape)} of {list(hidden.shape)}")
        self.returned[index:] = [members]
        return first(output)


def hidden_states(args: Any, kwargs: Any) -> Any:
    value = args[0] if args else kwargs.get("hidden_states")
    if not isinstance(value, torch.Tensor):
        raise Unsuitable("a layer is called without hidden states")
    return value


def first(output: Any) -> Any:
    return output if isinstance(output, torch.Tensor) else output[0]
