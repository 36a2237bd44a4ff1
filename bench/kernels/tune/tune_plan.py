"""What the library's plan becomes by the results of bench_tune: which kernels are compiled, what the plan takes them to
cost, and how devices run them.

What changes the order of additions (the sizes of tiles, the costs by which splits are chosen) is the same for all
devices, and so are the members of a tile, because each of its kernels is compiled once. A device's row has what the
host decides at a launch.
"""

import collections
import dataclasses
import itertools
import math

from tune_results import Int8Tile, Loop, Tile, by, texts_of
from tune_sm90 import MAX_M_OF_FEW_ROWS, Sm90Plan, sm90_plan_of
from tune_squares import least_squares

Costs = collections.namedtuple("Costs", "bytes_of_a_start bytes_of_an_end bytes_of_adding")
Device = collections.namedtuple("Device", "capability multiprocessors max_kept_x_bytes has_resident_grid")

SHARED_LIMIT = 99 << 10  # no block may have more for x (FourBitMatmul::shared_limit)
DEFAULT_LOOP = Loop("group", True, 0)
# The largest set of tiles for each m_tiles: so many kernels are compiled, whatever is measured.
DEFAULT_TILES = {
    1: (Tile(1, 2, 4, 2), Tile(1, 1, 8, 2), Tile(1, 1, 8, 1)),
    2: (Tile(2, 2, 4, 2), Tile(2, 4, 2, 2)),
    4: (Tile(4, 4, 2, 2),),
    8: (Tile(8, 4, 2, 2), Tile(8, 8, 1, 2)),
}
DEFAULT_TILES_OF_SHORT_RUNS = {1: (Tile(1, 2, 4, 2),), 4: (Tile(4, 4, 2, 2),)}
DEFAULT_INT8_TILES = {
    1: (Int8Tile(1, 2, 4, 2, 2), Int8Tile(1, 1, 8, 1, 2)),
    2: (Int8Tile(2, 2, 4, 2, 2),),
    4: (Int8Tile(4, 4, 2, 2, 2),),
    8: (Int8Tile(8, 4, 2, 2, 2),),
}
SHORT_RUNS = (32, 16, 8)
# The m that tiles are for, by their m_tiles.
ROWS = {1: (0, 8), 2: (9, 16), 4: (17, 32), 8: (33, 64)}
ROWS_OF_SHORT_RUNS = {1: (0, 8), 4: (9, 64)}
DEFAULT_COSTS = Costs(24_000, 5_500, 2_000_000)
DEFAULT_INT8_COSTS = Costs(12_000, 6_000, 2_000_000)
DEFAULT_KEPT_X = 32_000
DEFAULT_MIN_M_OF_SM90 = 65
SM90_ROWS = 32  # wgmma takes at least so many rows at a time, so fewer take as long
DEFAULT_DEVICES = (Device(90, 0, SHARED_LIMIT, True), Device(0, 0, 0, True))
MIN_GAIN = 0.99  # a change has to take less than this share of the time


@dataclasses.dataclass
class Plan:
    """Each member with the texts of the runs that it is from; no texts if it is an estimate."""

    choices: list  # (Tile, Loop)
    of_choices: list
    choices_of_short_runs: list  # the same
    of_short_runs: list
    costs: Costs
    of_costs: list
    bytes_of_kept_x: int
    of_kept_x: list
    min_m_of_sm90: int
    of_min_m: list
    sm90: Sm90Plan
    devices: list  # (Device, its texts)
    int8_choices: list  # Int8Tile
    of_int8_choices: list
    int8_costs: Costs
    of_int8_costs: list


def mean(ratios):
    """Of factors."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


# -- What is the same for all devices


def best_tiles(lines, m_tiles, default):
    """As many tiles as are compiled today, `default`: those with which the measured cases take the least time."""
    cases = [{tile: min(line.time for line in same) for tile, same in by(case, lambda line: line.tile).items()}
             for case in by([line for line in lines if line.stage == "tiles" and line.tile.m_tiles == m_tiles],
                            lambda line: line.case).values()]  # fmt: skip
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


def sizes(tile):
    """block_n(), block_k() and the bytes of 64 weights."""
    is_int8 = isinstance(tile, Int8Tile)
    groups = tile.groups if is_int8 else 4 // tile.n_tiles
    return 16 * tile.n_tiles * tile.n_warps, 64 * groups * tile.k_warps, 64 if is_int8 else 33


def fitted_costs(lines):
    """The three costs by least squares of relative errors, from products of up to 8 rows, which reading bounds.

    The plans' estimates (four_bit_matmul_config.cpp, int8_matmul_config.cpp) are linear in them. A fourth factor, of
    the bytes that are read, is how much slower the loop reads than the plainest kernel; the costs are in bytes that the
    loop could read.
    """
    rows, values = [], []
    for line in lines:
        if line.stage != "tiles" or line.tile.m_tiles != 1:
            continue
        tile = line.tile
        block_n, block_k, bytes_of_64 = sizes(tile)
        slots = line.run.multiprocessors * min_blocks(tile)
        turns = -(-(-(-line.n // block_n) * line.splits) // slots)
        k_of_a_split = -(-(-(-line.k // block_k)) // line.splits) * block_k
        bytes_of_a_tile = block_n * k_of_a_split * bytes_of_64 // 64 + (0 if line.keeps_x else line.m * k_of_a_split)
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
    return Costs(*(rounded(cost / loop) for cost in costs))


def rounded(value):
    """To two digits: no more are known."""
    if value < 1:
        return 0
    unit = 10 ** max(0, int(math.log10(value)) - 1)
    return int(round(value / unit)) * unit


def min_m_of_sm90(lines):
    """The m from which on wgmma takes less time on average, for all larger ones too; None if that was not measured. It
    takes as long for 17 rows as for 32: it multiplies 32 at a time."""
    ratios = collections.defaultdict(list)
    for case in by(lines, lambda line: line.case).values():
        times = {kernel: min(line.time for line in same) for kernel, same in by(case, lambda line: line.change).items()}
        if len(times) == 2:
            ratios[case[0].m].append(times["wgmma"] / times["mma"])
    if not ratios:
        return None
    slower = max((m for m, some in ratios.items() if mean(some) >= 1), default=0)
    faster = min((m for m in ratios if m > slower), default=slower + 1)
    return MAX_M_OF_FEW_ROWS + 1 if slower == 0 and faster <= SM90_ROWS else faster


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


# -- All of it


def devices_of(lines):
    groups = by(lines, lambda line: (line.run.capability, line.run.multiprocessors))
    for (capability, multiprocessors), own in sorted(groups.items(), reverse=True):
        limit = kept_x_limit(own)
        if limit is None:
            limit = SHARED_LIMIT if capability >= 90 else 0
        yield Device(capability, multiprocessors, limit, resident_or_not(own)), texts_of(own)


def choices_of(lines, defaults):
    return [(tile, best_loop(lines, tile))
            for m_tiles, default in defaults.items() for tile in best_tiles(lines, m_tiles, default)]  # fmt: skip


def choices_of_short_runs(lines):
    """Each run has kernels of its own, and keeps its estimate if it was not measured."""
    for run in SHORT_RUNS:
        of_run = [line for line in lines if line.tile.run == run]
        defaults = {m_tiles: tuple(tile._replace(run=run) for tile in tiles)
                    for m_tiles, tiles in DEFAULT_TILES_OF_SHORT_RUNS.items()}  # fmt: skip
        yield from choices_of(of_run, defaults)


def plan_of(all_lines):
    rows = [line for line in all_lines if line.stage == "rows"]
    int8 = [line for line in all_lines if line.is_int8]
    four_bit = [line for line in all_lines if line.stage in ("tiles", "loops", "together") and not line.is_int8]
    lines, short = ([line for line in four_bit if (line.tile.run == 64) == is_long] for is_long in (True, False))
    devices = list(devices_of(lines))
    fitted, int8_fitted = fitted_costs(lines), fitted_costs(int8)
    min_m = min_m_of_sm90(rows)
    takes_over = min_m == MAX_M_OF_FEW_ROWS + 1
    deciding = [line for line in rows if not takes_over or line.m <= SM90_ROWS]
    return Plan(
        choices=choices_of(lines, DEFAULT_TILES),
        of_choices=texts_of(lines),
        choices_of_short_runs=list(choices_of_short_runs(short)),
        of_short_runs=texts_of(short),
        costs=fitted or DEFAULT_COSTS,
        of_costs=texts_of(lines) if fitted else [],
        bytes_of_kept_x=min((device.max_kept_x_bytes for device, _ in devices), default=DEFAULT_KEPT_X),
        of_kept_x=texts_of(lines),
        min_m_of_sm90=min_m or DEFAULT_MIN_M_OF_SM90,
        of_min_m=texts_of(deciding) if min_m else [],
        sm90=sm90_plan_of(all_lines),
        devices=devices + [(device, []) for device in DEFAULT_DEVICES],
        int8_choices=[tile for m_tiles, default in DEFAULT_INT8_TILES.items() for tile in best_tiles(int8, m_tiles, default)],
        of_int8_choices=texts_of(int8),
        int8_costs=int8_fitted or DEFAULT_INT8_COSTS,
        of_int8_costs=texts_of(int8) if int8_fitted else [],
    )
