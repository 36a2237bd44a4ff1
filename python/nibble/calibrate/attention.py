"""Sees what attention does with the outputs of a value projection: it adds them up.

With A the attention weights of a head, an error E in the weights V changes the output of the head for token i by

    sum over j of A[i, j] E x[j] = E x~[i],   x~[i] = sum over j of A[i, j] x[j]

So V's input is taken to be the attended tokens x~, not x. They differ where attention goes to a few tokens only, such
as the first one, to which a language model may give most of its attention. Every head has rows x~ of its own. One of
them is taken for each token: head h of token i in sequence s, where h = (i + s) mod heads.

No model has to be known for this. The value projection is the weight whose product is the `value` that
scaled_dot_product_attention, or a product with probabilities, is given. It must be the product itself, apart from the
layout and from heads that are repeated. A projection of q, k and v in one, or one whose output is normalized, is not
recognized and keeps its plain input.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from .inputs import Inputs

scaled_dot_product_attention = torch.nn.functional.scaled_dot_product_attention


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

    @property
    def heads(self) -> int:
        return int(self.query.shape[1])

    def fits(self, sequences: int, tokens: int) -> bool:
        """Whether each token attends to the tokens of its own sequence."""
        shapes = {(x.shape[0], x.shape[2]) for x in (self.query, self.key) if x.ndim == 4}
        return self.query.ndim == self.key.ndim == 4 and shapes == {(sequences, tokens)}

    def attended(self, sequence: int, head: int, rows: Any, x: Any) -> Any:
        """Rows A[rows] x of one head in fp32, x [tokens, k]."""
        tokens = len(x)
        mask = self.attn_mask
        if self.is_causal:
            mask = torch.arange(tokens, device=x.device) <= rows[:, None]
        elif mask is not None:
            mask = mask.expand(len(self.query), self.heads, tokens, tokens)[sequence, head, rows]
            mask = mask if mask.dtype == torch.bool else mask.float()
        key = self.key[sequence, head * self.key.shape[1] // self.heads]
        query = self.query[sequence, head, rows]
        operands = (operand.float()[None] for operand in (query, key, x))
        return scaled_dot_product_attention(*operands, attn_mask=mask, scale=self.scale)[0]


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
        return self.probabilities[sequence, head, rows].float() @ x.float()


class Attention:
    """Calls inputs.add_attended(weight, rows) for the products that attention adds up."""

    def __init__(self, inputs: Inputs):
        self._inputs = inputs
        self._sequences: dict[str, int] = {}  # seen so far
        self.begin_call()

    def begin_call(self) -> None:
        self._products: list[tuple[str, Any, int, Any]] = []

    def add_product(self, weight: str, x: Any, product: Any) -> None:
        """Until the next attention, it may be a value."""
        if x.ndim == product.ndim == 3:
            self._products.append((weight, x, x._version, product))

    def add(self, attention: ScaledDotProduct | Probabilities) -> None:
        found = next((item for item in reversed(self._products) if is_value(attention.value, item[-1])), None)
        if found is None:
            return
        self._products = []
        weight, x, version, _ = found
        if x._version != version or not attention.fits(*x.shape[:2]):
            return
        for sequence, tokens in enumerate(x):
            self._inputs.add_attended(weight, self._rows(attention, weight, sequence, tokens))

    def _rows(self, attention: ScaledDotProduct | Probabilities, weight: str, sequence: int, x: Any) -> Any:
        """x~ [tokens, k], each row of one of the heads."""
        heads, number = attention.heads, self._sequences.get(weight, 0)
        self._sequences[weight] = number + 1
        found = x.new_empty(x.shape, dtype=torch.float32)
        for head in range(heads):
            rows = torch.arange(len(x), device=x.device)[(head - number) % heads :: heads]
            if len(rows):
                found[rows] = attention.attended(sequence, head, rows, x)
        return found


def is_value(value: Any, product: Any) -> bool:
    """Whether value [sequences, heads, tokens, width] is product [sequences, tokens, heads of it * width], of which
    each head may be repeated."""
    if value.ndim != 4:
        return False
    sequences, heads, tokens, width = value.shape
    if product.shape[:2] != (sequences, tokens) or product.shape[2] % width or heads * width % product.shape[2]:
        return False
    own = product.unflatten(2, (-1, width)).transpose(1, 2).unsqueeze(2)
    value = value.unflatten(1, (own.shape[1], -1))
    return bool(torch.equal(value, own.expand_as(value)))
