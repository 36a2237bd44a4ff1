"""How much the output of a model suffers for each relative squared error of a weight: noise on one weight at a time.

    a = loss / NOISE    of normal noise of variance NOISE * mean(w^2) on the weight

The loss of a language model is the KL divergence of its next-token distributions with the noise from those without,
the mean over all tokens; that of an encoder is 1 - cosine of the embeddings of nibble.evaluate, the mean over lines.
HIGGS (arXiv 2411.17525) measures such coefficients: while errors are small, the loss is linear in each of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ..model_error import embeddings

NOISE = 1e-2  # about the relative squared error of NF4
MOST_TOKENS = 4096  # for every weight, the model runs over so many of them again
LOSSES = {"language model": "kl_divergence", "encoder": "one_minus_cosine"}


def sample(items: list[list[int]]) -> list[list[int]]:
    """Sequences from all parts of the text, of MOST_TOKENS tokens together; at least one."""
    count = min(len(items), max(1, MOST_TOKENS * len(items) // sum(map(len, items))))
    return [items[i * len(items) // count] for i in range(count)]


def losses(model: Any, kind: str, parameters: list[Any], tokens: Any, seed: int) -> Iterator[float]:
    """Of each parameter, the sum over the tokens [sequences, length], or over the lines. It is exactly 0 if the noise
    changes nothing."""
    generator = torch.Generator().manual_seed(seed)
    expected = output(model, kind, tokens)
    for parameter in parameters:
        weight = parameter.data  # may be mapped from the file, so nothing is written into it
        parameter.data = weight + noise(weight, generator)
        try:
            given = output(model, kind, tokens)
        finally:
            parameter.data = weight
        yield loss(kind, expected, given)


def samples_of(kind: str, tokens: Any) -> int:
    """How many values the sum of a loss has."""
    return int(tokens.numel()) if kind == "language model" else len(tokens)


def noise(weight: Any, generator: Any) -> Any:
    deviation = torch.linalg.vector_norm(weight, dtype=torch.float32).item() * (NOISE / weight.numel()) ** 0.5
    return torch.empty_like(weight, device="cpu").normal_(0, deviation, generator=generator).to(weight.device)


def output(model: Any, kind: str, tokens: Any) -> Any:
    if kind == "language model":
        return model(tokens).logits.float().log_softmax(-1)
    return embeddings(model(tokens).last_hidden_state, torch.ones_like(tokens))


def loss(kind: str, expected: Any, given: Any) -> float:
    if kind == "language model":
        return float((expected.exp() * (expected - given)).sum(-1).double().sum())
    return float((expected - given).square().sum()) / 2  # of unit vectors
