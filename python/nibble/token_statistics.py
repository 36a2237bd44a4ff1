"""What llama.cpp's llama-perplexity says of two language models on one text, from their logits.

For a scored token y with the logits before it, P is the distribution of REF and Q that of TEST:

    nll    = -ln Q(y), nll_ref = -ln P(y)
    KLD    = sum over the vocabulary of P (ln P - ln Q)
    dp     = Q(y) - P(y)
    same   = 1 if the likeliest token of Q is that of P (the first of equals), else 0

Source of every definition: llama.cpp, tools/perplexity/perplexity.cpp, functions perplexity() and kl_divergence(). It
keeps REF's logarithms in 16 bits and leaves out terms with ln P <= -16; here all are summed, in fp64.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

CHUNK = 1 << 22  # logits that are held in fp64 at once: 32 MiB for each of a few temporaries
PERCENTILES = (99.9, 99.0, 95.0, 90.0, 10.0, 5.0, 1.0, 0.1)
LARGEST_EXPONENT = 700.0  # a model that is broken altogether: beyond it exp() overflows


class TokenStatistics:
    """Sums nothing: five fp64 numbers of each scored token are kept, so that percentiles are exact."""

    def __init__(self) -> None:
        self._values: dict[str, list[Tensor]] = {name: [] for name in ("nll_ref", "nll", "kld", "p_diff", "same")}

    def add(self, reference: Tensor, test: Tensor, targets: Tensor) -> None:
        """Logits [tokens, vocabulary] of both models, and the tokens [tokens] that came."""
        rows = max(1, CHUNK // reference.shape[-1])
        for begin in range(0, len(targets), rows):
            part = slice(begin, begin + rows)
            for name, value in token_values(reference[part], test[part], targets[part]).items():
                self._values[name].append(value.cpu())

    def summary(self) -> dict[str, Any]:
        return summary(**{name: torch.cat(values) for name, values in self._values.items()})


def token_values(reference: Tensor, test: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """{name: fp64 values [tokens]} as the top of this file defines them."""
    log_p = torch.log_softmax(reference.double(), dim=-1)
    log_q = torch.log_softmax(test.double(), dim=-1)
    p = log_p.exp()
    # A token that REF excludes (a logit of -inf) adds nothing, whatever TEST makes of it.
    terms = torch.where(p > 0, p * (log_p - log_q), torch.zeros_like(p))
    nll_ref = -log_p.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    nll = -log_q.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return {
        "nll_ref": nll_ref,
        "nll": nll,
        "kld": terms.sum(-1),
        "p_diff": (-nll).exp() - (-nll_ref).exp(),
        "same": (reference.argmax(-1) == test.argmax(-1)).double(),
    }


def mean_and_error(values: Tensor) -> tuple[float, float]:
    """The mean, and its standard error sqrt((mean(x^2) - mean(x)^2) / (n - 1)); 0 for up to ten values, as there."""
    mean = values.mean().item()
    if len(values) <= 10:
        return mean, 0.0
    return mean, math.sqrt((values - mean).square().mean().item() / (len(values) - 1))


def covariance(a: Tensor, b: Tensor) -> float:
    """Of two means: (mean(ab) - mean(a) mean(b)) / (n - 1)."""
    if len(a) <= 10:
        return 0.0
    product: float = ((a - a.mean()) * (b - b.mean())).mean().item()
    return product / (len(a) - 1)


def percentile(ordered: Tensor, percent: float) -> float:
    """Between the two neighbours of position percent / 100 * (n - 1), linearly."""
    position = percent / 100 * (len(ordered) - 1)
    below = min(int(position), len(ordered) - 1)
    above = min(below + 1, len(ordered) - 1)
    share = position - below
    return (1 - share) * float(ordered[below]) + share * float(ordered[above])


def spread(values: Tensor) -> dict[str, float]:
    """Mean and standard error, extremes, median and percentiles."""
    ordered = values.sort().values
    mean, error = mean_and_error(values)
    figures = {"mean": mean, "error": error, "max": ordered[-1].item(), "median": percentile(ordered, 50.0)}
    figures |= {f"p{percent:g}": percentile(ordered, percent) for percent in PERCENTILES}
    return figures | {"min": ordered[0].item()}


def perplexity(nll: Tensor) -> dict[str, float]:
    """exp(mean nll) and its standard error exp(mean nll) * error(nll)."""
    mean, error = mean_and_error(nll)
    value = math.exp(min(mean, LARGEST_EXPONENT))
    return {"mean": value, "error": value * error}


def summary(nll_ref: Tensor, nll: Tensor, kld: Tensor, p_diff: Tensor, same: Tensor) -> dict[str, Any]:
    """All figures of one TEST.

        perplexity      exp(mean nll) ± that times the error of mean nll
        ln_ratio        mean nll - mean nll_ref ± sqrt(e^2 + e_ref^2 - 2 cov): the errors of one text cancel out
        difference      PPL - PPL_ref ± sqrt(u^2 + u_ref^2 - 2 PPL PPL_ref cov), u the errors of the perplexities
        correlation     cov / (e e_ref)
        kld             mean ± its standard error, maximum, median, percentiles
        p_diff          the same of dp
        p_diff_rms      sqrt(mean dp^2) ± error(dp^2) / (2 sqrt(mean dp^2))
        same_top        share s of same ± sqrt(s (1 - s) / (n - 1))
    """
    count = len(nll)
    of_test, of_reference = perplexity(nll), perplexity(nll_ref)
    (mean, error), (mean_ref, error_ref) = mean_and_error(nll), mean_and_error(nll_ref)
    shared = covariance(nll, nll_ref)
    square, square_error = mean_and_error(p_diff.square())
    rms = math.sqrt(square)
    top = same.mean().item()
    between = of_test["error"] ** 2 + of_reference["error"] ** 2 - 2 * of_test["mean"] * of_reference["mean"] * shared
    return {
        "tokens": count,
        "perplexity": of_test,
        "perplexity_reference": of_reference,
        # The rounding of three sums must not make a root of a negative number.
        "ln_ratio": {"mean": mean - mean_ref, "error": math.sqrt(max(0.0, error**2 + error_ref**2 - 2 * shared))},
        "difference": {"mean": of_test["mean"] - of_reference["mean"], "error": math.sqrt(max(0.0, between))},
        "correlation": shared / (error * error_ref) if error > 0 and error_ref > 0 else None,
        "kld": spread(kld),
        "p_diff": spread(p_diff),
        "p_diff_rms": {"mean": rms, "error": square_error / (2 * rms) if rms > 0 else 0.0},
        "same_top": {"mean": top, "error": math.sqrt(top * (1 - top) / (count - 1)) if count > 1 else 0.0},
    }
