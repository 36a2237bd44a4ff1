#!/usr/bin/env python3
"""From what bench_tune measured to the table that the library's plan reads, kernels/host/four_bit_matmul_tuned.hpp.

usage: tune_table.py            writes the table
       tune_table.py --check    fails unless the committed table is the one that the committed results give
       tune_table.py --report   for each case, how much slower the library's configuration was than the best one

The results are bench/results/tune*.jsonl. Without any, the table has estimates and says so. tune_results.py reads them,
tune_plan.py chooses by them.
"""

import pathlib
import sys

from tune_estimates import MIN_LIBRARY_M, MULTIPROCESSORS_TO_FILL, NOT_MEASURED, OF_THE_TABLE
from tune_plan import DEFAULT_LOOP, plan_of
from tune_results import by, read_results

ROOT = pathlib.Path(__file__).resolve().parents[3]
TABLE = ROOT / "kernels" / "host" / "four_bit_matmul_tuned.hpp"
ESTIMATE = "instructions of 256 threads (430, 100; 0.5 us), at 2.4 for a weight of 0.516 bytes"


def commented(texts, indent="", width=120):
    """The sentence that says where figures are from, as lines of a comment."""
    text = ("; ".join(texts) if texts else NOT_MEASURED) + "."
    lines, words = [], text.split()
    for word in words:
        if lines and len(lines[-1]) + 1 + len(word) < width:
            lines[-1] += " " + word
        else:
            lines.append(f"{indent}{word}")
    return "\n".join(lines)


def number(value):
    return f"{value:,}".replace(",", "'")


def choice_text(tile, loop):
    low, high = {1: (0, 8), 2: (9, 16), 4: (17, 32), 8: (33, 64)}[tile.m_tiles]
    members = [f".m_tiles = {tile.m_tiles}", f".n_warps = {tile.n_warps}", f".k_warps = {tile.k_warps}"]
    if tile.n_tiles != 2:
        members.append(f".n_tiles = {tile.n_tiles}")
        high = 4  # FourBitMatmulTile::max_m()
    if loop.barrier != DEFAULT_LOOP.barrier:
        members.append(f".barrier = XBarrier::{loop.barrier}")
    if loop.loads_first != DEFAULT_LOOP.loads_first:
        members.append(".loads_first = false")
    if loop.prefetched_steps != DEFAULT_LOOP.prefetched_steps:
        members.append(f".prefetched_steps = {loop.prefetched_steps}")
    return f"    {{{{{', '.join(members)}}}, {low}, {high}}},"


def device_text(device, texts):
    kept = number(device.max_kept_x_bytes)
    resident = str(device.has_resident_grid).lower()
    return f"{commented(texts, '    // ')}\n    {{{device.capability}, {device.multiprocessors}, {kept}, {resident}}},"


def text_of(plan):
    costs, of_costs = plan.costs, plan.of_costs or [f"{NOT_MEASURED}: {ESTIMATE}"]
    newline = "\n"
    return f"""// The kernels that multiply by a 4-bit weight, what the plan takes them to cost, and how devices run them.
//
// bench/kernels/tune/tune_table.py writes this file from the results of bench_tune (docs/kernels-benchmark.md).
#pragma once
#include <array>

#include "kernels/host/four_bit_matmul_tuning.hpp"

namespace nibble::kernels::four_bit_matmul {{

/// The kernels that are compiled. Of those for an m, the estimate takes the cheapest, and of equally cheap ones the
/// first. A larger block_n() reads x less often, a smaller one divides n more evenly between multiprocessors.
///
{commented(plan.of_choices, "/// ")}
inline constexpr std::array<Choice, {len(plan.choices)}> choices{{{{
{newline.join(choice_text(tile, loop) for tile, loop in plan.choices)}
}}}};
{OF_THE_TABLE}
/// From so many rows of x on, the weight is dequantized and a library multiplies (docs/four-bit-matmul.md).
///
/// {NOT_MEASURED}.
inline constexpr u64 min_library_m = {MIN_LIBRARY_M};

inline constexpr Costs costs{{
{commented(of_costs, "    // ")}
    .bytes_of_a_start = {number(costs.bytes_of_a_start)},
    .bytes_of_an_end = {number(costs.bytes_of_an_end)},
    .bytes_of_adding = {number(costs.bytes_of_adding)},
{commented(plan.of_kept_x, "    // ")}
    .bytes_of_kept_x = {number(costs.bytes_of_kept_x)},
    // {NOT_MEASURED}: those of an H100 and an H200.
    .multiprocessors_to_fill = {MULTIPROCESSORS_TO_FILL},
}};

/// From so many rows of x on, devices of compute capability 9.0 use FourBitMatmulSm90.
///
{commented(plan.of_min_m, "/// ")}
inline constexpr u64 min_m_of_sm90 = {plan.min_m_of_sm90};

/// The first row that a device fits: its capability, its multiprocessors, max_kept_x_bytes, has_resident_grid.
inline constexpr std::array<DeviceTuning, {len(plan.devices)}> devices{{{{
{newline.join(device_text(device, texts) for device, texts in plan.devices)}
}}}};

}}  // namespace nibble::kernels::four_bit_matmul
"""


def report(lines):
    for (run, shape, m), case in by([line for line in lines if line.stage == "rows"], lambda line: line.case).items():
        best = ", ".join(f"{kernel} {min(line.time for line in same):.2f} us"
                         for kernel, same in by(case, lambda line: line.change).items())  # fmt: skip
        print(f"{run.gpu}, {shape}, m {m}: {best}")
    lines = [line for line in lines if line.stage != "rows"]
    for (run, shape, m), case in by(lines, lambda line: line.case).items():
        default = min((line.time for line in case if line.is_default), default=None)
        best = min(case, key=lambda line: line.time)
        slower = f"{default / best.time:.2f}" if default else "not measured"
        print(f"{run.gpu}, {shape}, m {m}: {best.time:.2f} us, default {slower}: {tuple(best.tile)}, {tuple(best.loop)}, "
              f"splits {best.splits}, keeps_x {best.keeps_x}, overlaps {best.overlaps}, resident {best.is_resident}")  # fmt: skip


def main():
    paths = sorted((ROOT / "bench" / "results").glob("tune*.jsonl"))
    lines = read_results(paths)
    if sys.argv[1:] == ["--report"]:
        return report(lines)
    text = text_of(plan_of(lines))
    if sys.argv[1:] == ["--check"]:
        if TABLE.read_text(encoding="utf-8") != text:
            own, table = (path.relative_to(ROOT) for path in (pathlib.Path(__file__).resolve(), TABLE))
            sys.exit(f"error: {table} is not what the results give: run {own}")
    elif not sys.argv[1:]:
        TABLE.write_text(text, encoding="utf-8")
    else:
        sys.exit(__doc__)
    return None


if __name__ == "__main__":
    main()
