"""Recognizes value projections, whose outputs attention adds up, and finds what their inputs amount to.

With A the attention weights of a head, an error E in the weights V changes the output of the head for token i by

    sum over j of A[i, j] E x[j] = E x~[i],   x~[i] = sum over j of A[i, j] x[j]

So V's input is taken to be the attended tokens x~, not x. They differ where attention goes to a few tokens only, such
as the first one, to which a language model may give most of its attention. Every head has rows x~ of its own. One of
them is taken for each token: head h of token i in sequence s, where h = (i + s + r) mod heads. r counts the runs of a
projection that runs several times in a pass, from 0.

No model has to be known for this. The value projection is the weight whose product is the `value` that
scaled_dot_product_attention, or a product with probabilities, is given. It must be the product itself, apart from the
layout and from heads that are repeated. A projection of q, k and v in one, or one whose output is normalized, is not
recognized and keeps its plain input.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Container
from typing import Any

import torch

from .inputs import Inputs

scaled_dot_product_attention = torch.nn.functional.scaled_dot_product_attention

LAST = 8  # products that are compared with a value, and held for it


@dataclasses.dataclass
class ScaledDotProduct:
    """The arguments of torch's function: query [sequences, heads, tokens, width], key and value with as many heads, or
    with fewer that are shared."""

    query: Any
    key: Any
    value: Any
    attn_mask: Any = None
    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False

    @classmethod
    def of(cls, *args: Any, **kwargs: Any) -> ScaledDotProduct | None:
        """None if there is an argument that only a later torch knows."""
        names = [field.name for field in dataclasses.fields(cls)]
        return None if len(args) > len(names) or kwargs.keys() - set(names) else cls(*args, **kwargs)

    @property
    def heads(self) -> int:
        return int(self.query.shape[1])

    def fits(self, sequences: int, tokens: int) -> bool:
        """Whether each token attends to the tokens of its own sequence."""
        return all(x.ndim == 4 and (x.shape[0], x.shape[2]) == (sequences, tokens) for x in (self.query, self.key))

    def attended(self, sequence: int, head: int, rows: Any, x: Any) -> Any:
        """Rows A[rows] x of one head, x [tokens, k] in fp32."""
        tokens = len(x)
        mask = self.attn_mask
        if self.is_causal:
            mask = torch.arange(tokens, device=x.device) <= rows[:, None]
        elif mask is not None:
            mask = mask.expand(len(self.query), self.heads, tokens, tokens)[sequence, head, rows]
            mask = mask if mask.dtype == torch.bool else mask.float()
        key = self.key[sequence, head * self.key.shape[1] // self.heads]
        query = self.query[sequence, head, rows]
        query, key = query.float()[None], key.float()[None]
        return scaled_dot_product_attention(query, key, x[None], attn_mask=mask, scale=self.scale)[0]


@dataclasses.dataclass
class Probabilities:
    """A product of A [sequences, heads, tokens, tokens] with value [sequences, heads, tokens, width]."""

    probabilities: Any
    value: Any

    @property
    def heads(self) -> int:
        return int(self.probabilities.shape[1])

    def fits(self, sequences: int, tokens: int) -> bool:
        shape = tuple(self.probabilities.shape)
        return len(shape) == 4 and (shape[0], *shape[2:]) == (sequences, tokens, tokens)

    def attended(self, sequence: int, head: int, rows: Any, x: Any) -> Any:
        return self.probabilities[sequence, head, rows].float() @ x


class Attention:
    """Calls inputs.add_attended(weight, rows) for those of the `candidates` that are value projections."""

    def __init__(self, inputs: Inputs, candidates: Container[str]):
        self._inputs, self._candidates = inputs, candidates
        self._before = self._sequences = 0  # sequences of the passes before this one, and of this one
        self.begin_call()

    def begin_call(self) -> None:
        self._products: collections.deque[Product] = collections.deque(maxlen=LAST)
        self._runs: collections.Counter[str] = collections.Counter()
        self._before, self._sequences = self._before + self._sequences, 0

    def add_product(self, weight: str, x: Any, product: Any) -> None:
        """Until the next attention, it may be a value."""
        if weight in self._candidates and product.ndim == 3:
            self._products.append(Product(weight, x, product, versions(x, product)))

    def skip(self) -> None:
        """An attention of another kind has taken the last products."""
        self._products.clear()

    def add(self, attention: ScaledDotProduct | Probabilities) -> None:
        found = [product for product in self._products if is_value(attention.value, product.output)]
        if found or isinstance(attention, ScaledDotProduct):
            self._products.clear()
        if len(found) == 1:
            self._add_rows(attention, *found)

    def _add_rows(self, attention: ScaledDotProduct | Probabilities, product: Product) -> None:
        x, weight = product.x, product.weight
        if versions(x, product.output) != product.versions or not attention.fits(*x.shape[:2]):
            return
        self._sequences = len(x)
        for sequence, tokens in enumerate(x.float()):
            shift, rows = self._before + sequence + self._runs[weight], torch.empty_like(tokens)
            for head in range(attention.heads):
                which = torch.arange(len(tokens), device=x.device)[(head - shift) % attention.heads :: attention.heads]
                if len(which):
                    rows[which] = attention.attended(sequence, head, which, tokens)
            self._inputs.add_attended(weight, rows)
        self._runs[weight] += 1


@dataclasses.dataclass
class Product:
    weight: str
    x: Any
    output: Any
    versions: tuple[int, int]


def versions(x: Any, output: Any) -> tuple[int, int]:
    """They change when something is written into the tensors."""
    return x._version, output._version


def is_value(value: Any, product: Any) -> bool:
    """Whether value [sequences, heads, tokens, width] is product [sequences, tokens, heads of it * width], of which
    each head may be repeated."""
    if value.ndim != 4 or not value.numel() or value.device != product.device:
        return False
    sequences, heads, tokens, width = value.shape
    if product.shape[:2] != (sequences, tokens) or product.shape[2] % width or heads * width % product.shape[2]:
        return False
    own = product.unflatten(2, (-1, width)).transpose(1, 2).unsqueeze(2)
    value = value.unflatten(1, (own.shape[1], -1))
    return bool(torch.equal(value, own.expand_as(value)))
