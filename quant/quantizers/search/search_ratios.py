#!/usr/bin/env python3
"""Chooses what search_ratios.cpp holds, and prints it: multiples of a block's largest magnitude to try as its absmax.

    quant/quantizers/search/search_ratios.py        (needs numpy; three minutes)

For each blocksize, from a grid of 1/64 between 0.3 and 1.8, of either sign or positive: one ratio after another is
added, each time the one that lowers the error most. The error is that of NF4 and FP4 on blocks of normal, Laplace and
Student's t (5 degrees of freedom) numbers, each relative to the least error on the whole grid.
"""

import numpy as np

NF4 = np.array([-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
                -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
                0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023,
                1.0])  # fmt: skip
FP4 = np.array([0, 1 / 192, 1 / 6, 1 / 4, 1 / 3, 1 / 2, 2 / 3, 1])
CODEBOOKS = (NF4, np.unique(np.concatenate((-FP4, FP4))))
MAGNITUDES = np.arange(20, 116) / 64
BLOCKSIZES = (32, 64, 128, 256, 512, 1024, 2048, 4096)
WEIGHTS, MIN_BLOCKS = 400_000, 600


def blocks(blocksize):
    random = np.random.default_rng(blocksize)
    shape = (max(MIN_BLOCKS, WEIGHTS // blocksize), blocksize)
    for weights in (random.standard_normal(shape), random.laplace(size=shape), random.standard_t(5, shape)):
        yield (weights / np.abs(weights).max(1, keepdims=True)).astype(np.float32)


def gains(codebook, weights, ratio):
    """A^2 / B of each block (scale_search.hpp)."""
    codebook = codebook.astype(np.float32)
    nearest = codebook[np.searchsorted((codebook[1:] + codebook[:-1]) / 2, weights / np.float32(ratio))]
    product, square = (weights * nearest).sum(1), (nearest * nearest).sum(1)
    return product * product / np.maximum(square, 1e-30)


def choose(ratios, all_gains, all_squares, count):
    """all_gains: for each set of blocks [ratios, blocks]; all_squares: sums of w^2 [blocks]."""
    weights = [1 / (squares - gain.max(0)).sum() for gain, squares in zip(all_gains, all_squares)]
    best, chosen = [np.zeros_like(squares) for squares in all_squares], []
    for _ in range(count):
        totals = sum(w * np.maximum(b, g).sum(1) for w, b, g in zip(weights, best, all_gains))
        chosen.append(int(np.argmax(totals)))
        best = [np.maximum(b, g[chosen[-1]]) for b, g in zip(best, all_gains)]
    excess = [np.sqrt((s - b).sum() / (s - g.max(0)).sum()) - 1 for s, b, g in zip(all_squares, best, all_gains)]
    return sorted(ratios[chosen]), max(excess)


def main():
    for name, signs, count in (("either", (-1, 1), 20), ("positive", (1,), 12)):
        ratios = np.concatenate([sign * MAGNITUDES for sign in signs])
        for blocksize in BLOCKSIZES:
            all_gains, all_squares = [], []
            for weights in blocks(blocksize):
                for codebook in CODEBOOKS:
                    all_gains.append(np.stack([gains(codebook, weights, ratio) for ratio in ratios]))
                    all_squares.append((weights.astype(np.float64) ** 2).sum(1))
            chosen, excess = choose(ratios, all_gains, all_squares, count)
            numbers = ", ".join(f"{round(64 * ratio)}" for ratio in chosen)
            print(f"    {{{numbers}}},  // {blocksize}, {name}: {100 * excess:.2f} % above the grid", flush=True)


if __name__ == "__main__":
    main()
