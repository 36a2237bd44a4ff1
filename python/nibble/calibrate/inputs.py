"""Sums over the tokens that reach a weight, and which weights share them.

Of an input X [tokens, k]:

    mean_square    [k]     mean of x^2, summed in fp64
    absmax         [k]     largest |x|
    second_moment  [k, k]  X^T X / tokens: fp32 products of up to 1024 tokens, added up in fp64

Tokens are collected to chunks of a fixed number of rows before anything is summed. So the sums don't depend on how many
tokens come at a time, and a small chunk does not cost as much as adding a whole matrix.

Memory of an input with second moments: 8 k^2 bytes, and up to 1024 k values of the type of its tokens.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from ..model_directory import BadInput

CHUNK = 1024  # tokens, if a matrix of products is added for each chunk
SHORT_CHUNK = 64  # tokens, if only columns are


class Memory:
    """What second moments may take. They would be overcommitted: the system ends the process when they are written."""

    def __init__(self, bytes: float = math.inf):
        self._left = bytes

    def take(self, bytes: int, name: str) -> None:
        if bytes > self._left:
            raise MemoryError(
                f"the second moments of {name} take {bytes / 1e9:.2f} GB, {self._left / 1e9:.2f} GB are left"
            )
        self._left -= bytes


class Statistics:
    """Of one input."""

    def __init__(self, name: str, like: Any, second_moments: bool, memory: Memory):
        """`like`: a tensor of the input's type, device and number of columns."""
        columns = like.shape[-1]
        options = {"dtype": torch.float64, "device": like.device}
        self.name, self.columns, self.tokens = name, columns, 0
        self._second_moment = None
        if second_moments:
            memory.take(8 * columns * columns, name)
            self._second_moment = torch.zeros(columns, columns, **options)
        self._squares = torch.zeros(columns, **options)
        self._absmax = torch.zeros(columns, dtype=torch.float32, device=like.device)
        rows = min(columns, CHUNK) if second_moments else SHORT_CHUNK
        self._chunk, self._filled = like.new_empty(rows, columns), 0

    def add(self, x: Any) -> None:
        """Tokens [any, columns]."""
        self.tokens += len(x)
        while len(x):
            part = x[: len(self._chunk) - self._filled]
            self._chunk[self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            x = x[len(part) :]
            if self._filled == len(self._chunk):
                self._sum()

    def finish(self) -> dict[str, Any]:
        """{statistic: fp32 tensor on the CPU}. The sums are gone afterwards."""
        self._sum()
        found = {"mean_square": self._squares.div_(self.tokens), "absmax": self._absmax}
        if self._second_moment is not None:
            found["second_moment"], self._second_moment = self._second_moment.div_(self.tokens), None
        found = {statistic: value.float().cpu() for statistic, value in found.items()}
        if not all(value.isfinite().all() for value in found.values()):
            raise BadInput(f"the input of '{self.name}' is not finite, or too large for fp32")
        return found

    def _sum(self) -> None:
        rows, self._filled = self._chunk[: self._filled], 0
        if not len(rows):
            return
        self._squares += rows.double().square_().sum(0)
        self._absmax = torch.maximum(self._absmax, rows.abs().amax(0).float())
        if self._second_moment is not None:
            rows = rows.float()
            self._second_moment += rows.T @ rows


class Inputs:
    """The inputs of some weights. Weights that are fed with the same tensor in each call share one."""

    def __init__(self, second_moments: bool, memory: Memory):
        self._second_moments, self._memory = second_moments, memory
        self.of_weight: dict[str, str] = {}
        """{weight: its input, which is called like the first weight that had it, or attended(weight)}"""
        self._tokens: dict[str, int] = {}
        self._statistics: dict[str, Statistics] = {}
        self._attended: dict[str, Statistics] = {}
        self.begin_call()

    def begin_call(self) -> None:
        """A forward pass begins: no tensor of the one before is met again."""
        self._met: dict[Any, list[str]] = {}  # the weights that have met each tensor
        self._kept: list[Any] = []  # tensors whose memory must not be used for another one
        self._new: set[str] = set()  # weights that no call before has met

    def add(self, weight: str, x: Any) -> None:
        if x.numel() == 0:  # an expert without a token: all such inputs have the address 0
            return
        key = (x.data_ptr(), x.shape[-1], x.numel(), x.stride(-1), x.dtype, x._version)
        met = self._met.setdefault(key, [])
        self._kept.append(x)
        if weight not in self.of_weight:
            owners = (other for other in met if other in self._new and self.of_weight[other] == other)
            self.of_weight[weight] = next(owners, weight)
            self._new.add(weight)
        met.append(weight)
        owner = self.of_weight[weight]
        rows = x.detach().reshape(-1, x.shape[-1])
        self._tokens[weight] = self._tokens.get(weight, 0) + len(rows)
        if owner == weight:
            if weight not in self._statistics:
                self._statistics[weight] = Statistics(weight, rows, self._second_moments, self._memory)
            self._statistics[weight].add(rows)
        elif owner not in met:
            raise self._not_shared(weight, owner)

    def add_attended(self, weight: str, x: Any) -> None:
        """What is to count as the weight's input instead: x [tokens, columns]. If it has not as many tokens in all as
        add() was given for the weight, the plain input counts."""
        if weight not in self._attended:
            self._attended[weight] = Statistics(attended(weight), x, self._second_moments, self._memory)
        self._attended[weight].add(x)

    def finish(self) -> dict[str, tuple[int, int, dict[str, Any]]]:
        """{input: (columns, tokens, statistics)}"""
        self.begin_call()
        for weight, owner in self.of_weight.items():
            if self._tokens[weight] != self._tokens[owner]:
                raise self._not_shared(weight, owner)
        for weight, statistics in self._attended.items():
            if statistics.tokens == self._tokens[weight]:
                self.of_weight[weight] = statistics.name
                self._statistics[statistics.name] = statistics
        found, used = {}, set(self.of_weight.values())
        for name in list(self._statistics):
            statistics = self._statistics.pop(name)
            if name in used:
                found[name] = (statistics.columns, statistics.tokens, statistics.finish())
        return found

    @staticmethod
    def _not_shared(weight: str, owner: str) -> BadInput:
        return BadInput(f"'{weight}' and '{owner}' take the same input in some passes, and different ones in others")


def attended(weight: str) -> str:
    """The name of its input."""
    return weight.removesuffix(".weight") + ".attended"
