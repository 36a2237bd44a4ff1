#!/usr/bin/env python3
"""From what bench_tune measured to the table that the library's plan reads, kernels/host/four_bit_matmul_tuned.hpp.

usage: bench/tune_table.py            writes the table
       bench/tune_table.py --check    fails unless the committed table is the one that the committed results give
       bench/tune_table.py --report   for each case, how much slower the library's configuration was than the best one
       bench/tune_table.py --test     checks this script itself

The results are bench/results/tune*.jsonl. Without any, the table has estimates and says so. What changes the order of
additions (the sizes of tiles, the costs by which splits are chosen) is the same for all devices, and so are the
members of a tile, because each of its kernels is compiled once. A device's row has what the host decides at a launch.
"""

import collections
import dataclasses
import itertools
import json
import math
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
TABLE = ROOT / "kernels" / "host" / "four_bit_matmul_tuned.hpp"

Tile = collections.namedtuple("Tile", "m_tiles n_warps k_warps n_tiles")
Loop = collections.namedtuple("Loop", "barrier loads_first prefetched_steps")
Costs = collections.namedtuple("Costs", "bytes_of_a_start bytes_of_an_end bytes_of_adding bytes_of_kept_x")
Device = collections.namedtuple("Device", "capability multiprocessors max_kept_x_bytes has_resident_grid")

NOT_MEASURED = "An estimate, not measured"
SHARED_LIMIT = 99 << 10  # FourBitMatmul::shared_limit: x that is kept has no more room
DEFAULT_LOOP = Loop("group", True, 0)
# The largest set of tiles for each m_tiles: so many kernels are compiled, whatever is measured.
DEFAULT_TILES = {
    1: (Tile(1, 2, 4, 2), Tile(1, 1, 8, 2), Tile(1, 1, 8, 1)),
    2: (Tile(2, 2, 4, 2), Tile(2, 4, 2, 2)),
    4: (Tile(4, 4, 2, 2),),
    8: (Tile(8, 4, 2, 2), Tile(8, 8, 1, 2)),
}
DEFAULT_COSTS = Costs(24_000, 5_500, 2_000_000, 32_000)
DEFAULT_MIN_M_OF_SM90 = 65
DEFAULT_DEVICES = (Device(90, 0, SHARED_LIMIT, True), Device(0, 0, 0, True))
# bench_tune does not measure it; the step `library` of bench/kernels.sh does.
MIN_LIBRARY_M = 512
MIN_GAIN = 0.99  # a change has to take less than this share of the time


@dataclasses.dataclass
class Line:
    """A time of one variant, in microseconds."""

    run: "Run"
    n: int
    k: int
    m: int
    stage: str
    change: str
    tile: Tile
    loop: Loop
    keeps_x: bool
    splits: int
    overlaps: bool
    is_resident: bool
    is_default: bool
    time: float

    @property
    def case(self):
        return self.run, self.n, self.k, self.m


@dataclasses.dataclass(frozen=True)
class Run:
    file: str
    gpu: str
    capability: int
    multiprocessors: int
    date: str
    bytes_per_us: float  # of plain reads

    @property
    def text(self):
        return f"bench/results/{self.file}, {self.gpu}, {self.date}"


def line_of(run, line):
    v = line["variant"]
    n, k = map(int, line["shape"].split("x"))
    return Line(run, n, k, line["m"], line["stage"], line["change"], Tile(*(v[name] for name in Tile._fields)),
                Loop(*(v[name] for name in Loop._fields)), v["keeps_x"], v["splits"], v["overlaps"], v["is_resident"],
                line["default"], line["median"])  # fmt: skip


def line_of_rows(run, line):
    """Of the comparison of kernels for many rows of x: the change is the kernel, mma or wgmma."""
    n, k = map(int, line["shape"].split("x"))
    return Line(run, n, k, line["m"], "rows", line["kernel"], None, None, False, line["splits"], False, True,
                line["default"], line["median"])  # fmt: skip


def read_results(paths):
    """The lines of all files, each with the device that it is from."""
    results = []
    for path in paths:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
        lines = [line for line in lines if line.get("step", "variants") in ("variants", "many-rows")]
        device = next((line for line in lines if line.get("kind") == "device"), None)
        read = next((line for line in lines if line.get("name") == "read/kernel"), None)
        if device is None or read is None:
            continue
        run = Run(path.name, device["gpu"], device["capability"], device["multiprocessors"], device["date"],
                  1e3 * read["gb_s"])  # fmt: skip
        results += [line_of(run, line) for line in lines if "variant" in line and "median" in line]
        results += [line_of_rows(run, line) for line in lines if "kernel" in line and "median" in line]
    return results


def texts_of(lines):
    return sorted({line.run.text for line in lines})


def mean(ratios):
    """Of factors."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def by(lines, key):
    groups = collections.defaultdict(list)
    for line in lines:
        groups[key(line)].append(line)
    return groups


# -- What is the same for all devices


def best_tiles(lines, m_tiles):
    """As many tiles as are compiled today: those with which the measured cases take the least time."""
    cases = [{tile: min(line.time for line in same) for tile, same in by(case, lambda line: line.tile).items()}
             for case in by([line for line in lines if line.stage == "tiles" and line.tile.m_tiles == m_tiles],
                            lambda line: line.case).values()]  # fmt: skip
    default = DEFAULT_TILES[m_tiles]
    if not cases:
        return default
    tiles = [*default, *sorted({tile for case in cases for tile in case} - set(default))]

    def slowness(some):
        return sum(math.log(min(case.get(tile, 1e9) for tile in some) / min(case.values())) for case in cases)

    # The first of equally good ones, so that nothing changes without a reason.
    return min(itertools.combinations(tiles, len(default)), key=lambda some: round(slowness(some), 6))


def best_loop(lines, tile):
    """The way to wait and load that takes the least time on average over all cases, if that is clearly less."""
    ratios, cases = collections.defaultdict(list), 0
    loops = [line for line in lines if line.stage == "loops" and line.tile == tile]
    for case in by(loops, lambda line: line.case).values():
        base = next((line for line in case if line.change == "none"), None)
        if base is None:
            continue
        cases += 1
        for line in case:
            if line.change in ("barrier", "loads_first", "prefetched_steps"):
                ratios[line.loop].append(line.time / base.time)
                start = base.loop
    # What a kernel that keeps x does not have (barriers in a step) is measured in fewer cases.
    means = {loop: mean(some) for loop, some in ratios.items()}
    if not means:
        return DEFAULT_LOOP
    # Each member on its own, and then all together: bench_tune has measured that, too, for the best of each case.
    best = {}
    for i, name in enumerate(Loop._fields):
        own = {loop[i]: value for loop, value in means.items() if loop[i] != start[i]}
        value = min(own, key=own.get, default=start[i])
        best[name] = value if own and own[value] < MIN_GAIN else start[i]
    return Loop(**best)


def min_blocks(tile):
    return 2 if tile.m_tiles <= 2 else 1


def fitted_costs(lines):
    """The three costs by least squares of relative errors, from products of up to 8 rows, which reading bounds.

    The plan's estimate (four_bit_matmul_config.cpp) is linear in them. A fourth factor, of the bytes that are read, is
    how much slower the loop reads than the plainest kernel; the costs are in bytes that the loop could read.
    """
    rows, values = [], []
    for line in lines:
        if line.stage != "tiles" or line.tile.m_tiles != 1:
            continue
        tile = line.tile
        block_n, block_k = 16 * tile.n_tiles * tile.n_warps, 64 * (4 // tile.n_tiles) * tile.k_warps
        slots = line.run.multiprocessors * min_blocks(tile)
        turns = -(-(-(-line.n // block_n) * line.splits) // slots)
        k_of_a_split = -(-(-(-line.k // block_k)) // line.splits) * block_k
        bytes_of_a_tile = block_n * k_of_a_split * 33 // 64 + (0 if line.keeps_x else line.m * k_of_a_split)
        sums = line.splits * line.m * line.n * 4 if line.splits > 1 else 0
        measured = line.time * line.run.bytes_per_us
        row = (slots * turns * bytes_of_a_tile + sums, slots, slots * turns, int(line.splits > 1))
        rows.append([value / measured for value in row])
        values.append(1.0)
    if len(rows) < 20:
        return None
    loop, *costs = least_squares(rows, values)
    if loop <= 0:
        return None
    return [rounded(cost / loop) for cost in costs]


def least_squares(rows, values):
    """The factors of the columns, none of them below zero: a column whose factor would be is left out."""
    columns = list(range(len(rows[0])))
    while True:
        factors = solved([[sum(row[i] * row[j] for row in rows) for j in columns] for i in columns],
                         [sum(row[i] * value for row, value in zip(rows, values)) for i in columns])  # fmt: skip
        lowest = min(range(len(columns)), key=lambda i: factors[i])
        if factors[lowest] >= 0:
            found = dict(zip(columns, factors))
            return [found.get(i, 0.0) for i in range(len(rows[0]))]
        del columns[lowest]


def solved(matrix, right):
    """By Gauss's elimination; columns that depend on others get 0."""
    n = len(right)
    scale = [math.sqrt(matrix[i][i]) or 1.0 for i in range(n)]
    rows = [[matrix[i][j] / scale[i] / scale[j] for j in range(n)] + [right[i] / scale[i]] for i in range(n)]
    for i in range(n):
        pivot = max(range(i, n), key=lambda row: abs(rows[row][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        if abs(rows[i][i]) < 1e-12:
            rows[i] = [float(j == i) for j in range(n)] + [0.0]
        for row in range(n):
            if row != i:
                factor = rows[row][i] / rows[i][i]
                rows[row] = [a - factor * b for a, b in zip(rows[row], rows[i])]
    return [rows[i][n] / rows[i][i] / scale[i] for i in range(n)]


def rounded(value):
    """To two digits: no more are known."""
    if value < 1:
        return 0
    unit = 10 ** max(0, int(math.log10(value)) - 1)
    return int(round(value / unit)) * unit


def min_m_of_sm90(lines):
    """The m from which on wgmma takes less time on average, for all larger ones too; None if that was not measured."""
    ratios = collections.defaultdict(list)
    for case in by(lines, lambda line: line.case).values():
        times = {kernel: min(line.time for line in same) for kernel, same in by(case, lambda line: line.change).items()}
        if len(times) == 2:
            ratios[case[0].m].append(times["wgmma"] / times["mma"])
    if not ratios:
        return None
    slower = max((m for m, some in ratios.items() if mean(some) >= 1), default=0)
    return min((m for m in ratios if m > slower), default=slower + 1)


# -- What each device has for itself


def ratios_of(lines, change):
    """(bytes of x, time with the change divided by that without, the changed line) of each case and tile."""
    for same in by([line for line in lines if line.stage == "loops"], lambda line: (line.case, line.tile)).values():
        base = next((line for line in same if line.change == "none"), None)
        for line in same:
            if base is not None and line.change == change:
                yield 2 * line.m * line.k, line.time / base.time, line


def kept_x_limit(lines):
    """The bytes of x up to which keeping it does not take longer; None if that was not measured."""
    kept = collections.defaultdict(list)
    for size, ratio, line in ratios_of(lines, "keeps_x"):
        kept[size].append(ratio if line.keeps_x else 1 / ratio)
    if not kept:
        return None
    limit = 0
    for size in sorted(kept):
        if mean(kept[size]) > 1:
            return limit
        limit = size
    return SHARED_LIMIT


def resident_or_not(lines):
    ratios = [ratio if not line.is_resident else 1 / ratio for _, ratio, line in ratios_of(lines, "grid")]
    return not ratios or mean(ratios) >= MIN_GAIN


# -- The table


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


def table(lines):
    rows, lines = ([line for line in lines if (line.stage == "rows") == is_rows] for is_rows in (True, False))
    choices = [(tile, best_loop(lines, tile)) for m_tiles in DEFAULT_TILES for tile in best_tiles(lines, m_tiles)]
    devices = []
    groups = by(lines, lambda line: (line.run.capability, line.run.multiprocessors))
    for (capability, multiprocessors), own in sorted(groups.items(), reverse=True):
        limit = kept_x_limit(own)
        if limit is None:
            limit = SHARED_LIMIT if capability >= 90 else 0
        devices.append((Device(capability, multiprocessors, limit, resident_or_not(own)), texts_of(own)))
    fitted = fitted_costs(lines)
    costs = Costs(*(fitted or DEFAULT_COSTS[:3]),
                  min((device.max_kept_x_bytes for device, _ in devices), default=DEFAULT_COSTS.bytes_of_kept_x))  # fmt: skip
    devices += [(device, []) for device in DEFAULT_DEVICES]
    of_fit = texts_of(lines) if fitted else []
    of_kept = texts_of(lines)
    min_m = min_m_of_sm90(rows)
    of_rows = texts_of(rows) if min_m else []
    estimate = "" if fitted else ": instructions of 256 threads (430, 100; 0.5 us), at 2.4 for a weight of 0.516 bytes"
    newline = "\n"
    return f"""// The kernels that multiply by a 4-bit weight, what the plan takes them to cost, and how devices run them.
//
// bench/tune_table.py writes this file from the results of bench_tune (docs/kernels-benchmark.md).
#pragma once
#include <array>

#include "kernels/host/four_bit_matmul_tuning.hpp"

namespace nibble::kernels::four_bit_matmul {{

/// The kernels that are compiled. Of those for an m, the estimate takes the cheapest, and of equally cheap ones the
/// first. A larger block_n() reads x less often, a smaller one divides n more evenly between multiprocessors.
///
{commented(texts_of(lines), "/// ")}
inline constexpr std::array<Choice, {len(choices)}> choices{{{{
{newline.join(choice_text(tile, loop) for tile, loop in choices)}
}}}};

/// From so many rows of x on, the weight is dequantized and a library multiplies (docs/four-bit-matmul.md).
///
/// {NOT_MEASURED}.
inline constexpr u64 min_library_m = {MIN_LIBRARY_M};

inline constexpr Costs costs{{
{commented([text + estimate for text in (of_fit or [NOT_MEASURED])], "    // ")}
    .bytes_of_a_start = {number(costs.bytes_of_a_start)},
    .bytes_of_an_end = {number(costs.bytes_of_an_end)},
    .bytes_of_adding = {number(costs.bytes_of_adding)},
{commented(of_kept, "    // ")}
    .bytes_of_kept_x = {number(costs.bytes_of_kept_x)},
}};

/// From so many rows of x on, devices of compute capability 9.0 use FourBitMatmulSm90.
///
{commented(of_rows, "/// ")}
inline constexpr u64 min_m_of_sm90 = {min_m or DEFAULT_MIN_M_OF_SM90};

/// The first row that a device fits: its capability, its multiprocessors, max_kept_x_bytes, has_resident_grid.
inline constexpr std::array<DeviceTuning, {len(devices)}> devices{{{{
{newline.join(device_text(device, texts) for device, texts in devices)}
}}}};

}}  // namespace nibble::kernels::four_bit_matmul
"""


def report(lines):
    for (run, n, k, m), case in by([line for line in lines if line.stage == "rows"], lambda line: line.case).items():
        best = ", ".join(f"{kernel} {min(line.time for line in same):.2f} us"
                         for kernel, same in by(case, lambda line: line.change).items())  # fmt: skip
        print(f"{run.gpu}, {n}x{k}, m {m}: {best}")
    lines = [line for line in lines if line.stage != "rows"]
    for (run, n, k, m), case in by(lines, lambda line: line.case).items():
        default = min((line.time for line in case if line.is_default), default=None)
        best = min(case, key=lambda line: line.time)
        slower = f"{default / best.time:.2f}" if default else "not measured"
        print(f"{run.gpu}, {n}x{k}, m {m}: {best.time:.2f} us, default {slower}: {tuple(best.tile)}, {tuple(best.loop)}, "
              f"splits {best.splits}, keeps_x {best.keeps_x}, overlaps {best.overlaps}, resident {best.is_resident}")  # fmt: skip


def main():
    paths = sorted((ROOT / "bench" / "results").glob("tune*.jsonl"))
    if sys.argv[1:] == ["--test"]:
        import tune_table_test

        return tune_table_test.run()
    lines = read_results(paths)
    if sys.argv[1:] == ["--report"]:
        return report(lines)
    text = table(lines)
    if sys.argv[1:] == ["--check"]:
        if TABLE.read_text(encoding="utf-8") != text:
            sys.exit(f"error: {TABLE.relative_to(ROOT)} is not what the results give: run bench/tune_table.py")
    elif not sys.argv[1:]:
        TABLE.write_text(text, encoding="utf-8")
    else:
        sys.exit(__doc__)
    return None


if __name__ == "__main__":
    main()
