#!/usr/bin/env python3
"""From what bench_tune measured to the table that the library's plans read, kernels/host/matmul/matmul_tuned.hpp.

usage: tune_table.py            writes the table
       tune_table.py --check    fails unless the committed table is the one that the committed results give
       tune_table.py --report   for each case, how much slower the library's configuration was than the best one; of
                                kernels that TMA feeds, the one that the results give

The results are bench/results/tune*.jsonl. Without any, the table has estimates and says so. tune_results.py reads them,
tune_plan.py and tune_sm90.py choose by them.
"""

import pathlib
import sys

from tune_estimates import MIN_LIBRARY_M, MULTIPROCESSORS_TO_FILL, NOT_MEASURED
from tune_plan import DEFAULT_LOOP, ROWS, ROWS_OF_SHORT_RUNS, plan_of
from tune_results import Int8Tile, by, read_results
from tune_sm90 import FEW_ROWS_TILES, few_rows_lines, line_of_plan, many_rows_lines, slowdowns, sm90_plan_of

ROOT = pathlib.Path(__file__).resolve().parents[3]
TABLE = ROOT / "kernels" / "host" / "matmul" / "matmul_tuned.hpp"
ESTIMATE = "instructions of 256 threads (430, 100; 0.5 us), at 2.4 for a weight of 0.516 bytes"
INT8_ESTIMATE = "instructions of 256 threads, and 0.5 us"


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
    low, high = (ROWS if tile.run == 64 else ROWS_OF_SHORT_RUNS)[tile.m_tiles]
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
    if tile.run != 64:
        members.append(f".run = {tile.run}")
    return f"    {{{{{', '.join(members)}}}, {low}, {high}}},"


def int8_choice_text(tile):
    low, high = ROWS[tile.m_tiles]
    members = ", ".join(f".{name} = {value}" for name, value in tile._asdict().items())
    return f"    {{{{{members}}}, {low}, {high}}},"


def costs_text(costs, texts, estimate):
    return f"""inline constexpr MatmulCosts costs{{
{commented(texts or [f"{NOT_MEASURED}: {estimate}"], "    // ")}
    .bytes_of_a_start = {number(costs.bytes_of_a_start)},
    .bytes_of_an_end = {number(costs.bytes_of_an_end)},
    .bytes_of_adding = {number(costs.bytes_of_adding)},
}};"""


def kernel_text(tile, numbers):
    """A kernel that TMA feeds, with its figures: the m that it is for, its costs."""
    members = ", ".join(f".{name} = {value}" for name, value in tile._asdict().items())
    return f"    {{{{{members}}}, {', '.join(map(number, numbers))}}},"


def device_text(device, texts):
    kept = number(device.max_kept_x_bytes)
    resident = str(device.has_resident_grid).lower()
    return f"{commented(texts, '    // ')}\n    {{{device.capability}, {device.multiprocessors}, {kept}, {resident}}},"


def text_of(plan):
    newline = "\n"
    return f"""// The kernels that multiply by 4-bit and int8 weights, what the plans take them to cost, and how devices run them.
//
// bench/kernels/tune/tune_table.py writes this file from the results of bench_tune (docs/kernels-benchmark.md).
#pragma once
#include <array>

#include "kernels/host/matmul/matmul_tuning.hpp"

namespace nibble::kernels {{

/// By blocks: a constant, so that every device adds in the same order.
///
/// {NOT_MEASURED}: those of an H100 and an H200.
inline constexpr u64 multiprocessors_to_fill = {MULTIPROCESSORS_TO_FILL};

namespace four_bit_matmul {{

/// The kernels that are compiled. Of those for an m, the estimate takes the cheapest, and of equally cheap ones the
/// first. A larger block_n() reads x less often, a smaller one divides n more evenly between multiprocessors.
///
{commented(plan.of_choices, "/// ")}
inline constexpr std::array<Choice, {len(plan.choices)}> choices{{{{
{newline.join(choice_text(tile, loop) for tile, loop in plan.choices)}
}}}};

/// The kernels that are compiled for runs shorter than 64 (kernels/matmul/four_bit/four_bit_matmul_run.hpp): few,
/// because few weights have blocks of 32 or a k that is no multiple of 64. More than 32 rows of x take turns.
///
{commented(plan.of_short_runs, "/// ")}
inline constexpr std::array<Choice, {len(plan.choices_of_short_runs)}> choices_of_short_runs{{{{
{newline.join(choice_text(tile, loop) for tile, loop in plan.choices_of_short_runs)}
}}}};

/// From so many rows of x on, the weight is dequantized and a library multiplies (docs/four-bit-matmul.md).
///
/// {NOT_MEASURED}.
inline constexpr u64 min_library_m = {MIN_LIBRARY_M};

{costs_text(plan.costs, plan.of_costs, ESTIMATE)}

/// What a block of one tile of m is taken to keep of x in shared memory.
///
{commented(plan.of_kept_x, "/// ")}
inline constexpr u64 bytes_of_kept_x = {number(plan.bytes_of_kept_x)};

/// From so many rows of x on, devices of compute capability 9.0 use FourBitMatmulSm90.
///
{commented(plan.of_min_m, "/// ")}
inline constexpr u64 min_m_of_sm90 = {plan.min_m_of_sm90};

/// How many clusters of 1, 2, 4 and 8 blocks an H100 or an H200 runs at a time: of the numbers that fit the results,
/// the one in the middle. Clusters of 4 and 8 leave some of the 132 multiprocessors idle; the reason is not known.
///
{commented(plan.sm90.of_clusters, "/// ")}
inline constexpr std::array<u64, 4> clusters_to_fill{{{", ".join(map(str, plan.sm90.clusters))}}};

/// The kernels of FourBitMatmulFewRows that are compiled. Of those for an m the estimate takes the cheapest, and of
/// equally cheap ones the first.
///
{commented(plan.sm90.of_few_rows, "/// ")}
inline constexpr std::array<FewRowsChoice, {len(plan.sm90.few_rows)}> few_rows_choices{{{{
{newline.join(kernel_text(tile, (*FEW_ROWS_TILES[tile], *costs)) for tile, costs in plan.sm90.few_rows.items())}
}}}};

/// The kernels of FourBitMatmulSm90 that are compiled. For any m, the estimate takes the cheapest.
///
{commented(plan.sm90.of_many_rows, "/// ")}
inline constexpr std::array<Sm90Choice, {len(plan.sm90.many_rows)}> sm90_choices{{{{
{newline.join(kernel_text(tile, costs) for tile, costs in plan.sm90.many_rows.items())}
}}}};

/// The first row that a device fits: its capability, its multiprocessors, max_kept_x_bytes, has_resident_grid.
inline constexpr std::array<DeviceTuning, {len(plan.devices)}> devices{{{{
{newline.join(device_text(device, texts) for device, texts in plan.devices)}
}}}};

}}  // namespace four_bit_matmul

namespace int8_matmul {{

/// As for 4-bit weights.
///
{commented(plan.of_int8_choices, "/// ")}
inline constexpr std::array<Choice, {len(plan.int8_choices)}> choices{{{{
{newline.join(map(int8_choice_text, plan.int8_choices))}
}}}};

/// From so many rows of x on, the weight is dequantized and a library multiplies (docs/int8-matmul.md).
///
/// {NOT_MEASURED}.
inline constexpr u64 min_library_m = {MIN_LIBRARY_M};

{costs_text(plan.int8_costs, plan.of_int8_costs, INT8_ESTIMATE)}

}}  // namespace int8_matmul
}}  // namespace nibble::kernels
"""


def report(lines):
    sm90 = sm90_plan_of(lines)
    for case in by(lines, lambda line: line.case).values():
        first, where = case[0], "{0.run.gpu}, {0.shape}, m {0.m}".format(case[0])
        if first.stage == "rows":
            best = ", ".join(f"{kernel} {min(line.time for line in same):.2f} us"
                             for kernel, same in by(case, lambda line: line.change).items())  # fmt: skip
            print(f"{where}: {best}{sm90_text(sm90, many_rows_lines(case))}")
            continue
        if first.stage == "few-rows":
            print(f"{where}: few rows {min(line.time for line in case):.2f} us{sm90_text(sm90, few_rows_lines(case))}")
            continue
        default = min((line.time for line in case if line.is_default), default=None)
        best = min(case, key=lambda line: line.time)
        slower = f"{default / best.time:.2f}" if default else "not measured"
        text = f"{best.time:.2f} us, default {slower}: {tuple(best.tile)}"
        if isinstance(best.tile, Int8Tile):
            print(f"{where}, int8: {text}, splits {best.splits}")
        else:
            print(f"{where}: {text}, {tuple(best.loop)}, splits {best.splits}, keeps_x {best.keeps_x}, "
                  f"overlaps {best.overlaps}, resident {best.is_resident}")  # fmt: skip
    for name, own in (("few rows", few_rows_lines(lines)), ("many rows", many_rows_lines(lines))):
        for gpu, same in sorted(by(own, lambda line: line.run.gpu).items()):
            if some := list(slowdowns(sm90, same)):
                print(f"{gpu}, {name}: the plan's launches take {sum(some) / len(some):.2%} longer than the fastest on "
                      f"average, and at most {max(some):.2%}")  # fmt: skip


def sm90_text(plan, case):
    """The fastest launch of a kernel that TMA feeds, and how much longer the plan's takes; nothing without lines of the
    present kernel."""
    if not case:
        return ""
    best, own = min(case, key=lambda line: line.time), line_of_plan(plan, case)
    longer = f"takes {own.time / best.time - 1:.1%} longer" if own else "was not measured"
    return f", by {tuple(best.tile)}, tile_n {best.tile_n}, splits {best.splits}; the plan's launch {longer}"


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
