"""The two kernels that TMA feeds on compute capability 9.0: the times that the library's plan expects of their
launches, fitted to the results of `bench_tune --few-rows` and `--many-rows`.

few_rows_config() and many_rows_config() choose launches as few_rows_config_for() and sm90_config_for() do
(kernels/host/matmul/four_bit/four_bit_matmul_config.cpp). Change them together.

Both estimates are sums of costs times known factors, so the costs are found by least squares of relative errors. The
plan only needs to find the fastest launch, so slow launches count less: the error of one that takes twice as long as
the fastest of its case counts a quarter.
"""

import collections
import dataclasses

from tune_estimates import CLUSTERS, FEW_ROWS_COSTS, MANY_ROWS_COSTS, MULTIPROCESSORS_TO_FILL
from tune_results import FewRowsTile, ManyRowsTile, by, texts_of
from tune_squares import least_squares

FewRowsCosts = collections.namedtuple("FewRowsCosts", "of_a_step of_a_row of_16_n of_8_rows of_adding")
ManyRowsCosts = collections.namedtuple("ManyRowsCosts", "of_a_step of_64_n of_32_rows of_a_start")
Launch = collections.namedtuple("Launch", "tile tile_n splits cost")

# The kernels that are compiled, and the m that those for few rows are for. Costs have the same order.
FEW_ROWS_TILES = {
    FewRowsTile(1, 1, 16): (0, 8),
    FewRowsTile(1, 4, 4): (5, 8),
    FewRowsTile(2, 2, 8): (9, 16),
    FewRowsTile(2, 4, 4): (9, 16),
}
MANY_ROWS_TILES = (
    ManyRowsTile(32, 4, 1),
    ManyRowsTile(32, 2, 2),
    ManyRowsTile(64, 4, 1),
    ManyRowsTile(64, 3, 1),
    ManyRowsTile(64, 2, 2),
    ManyRowsTile(96, 3, 1),
    ManyRowsTile(128, 2, 1),
)
MAX_M_OF_FEW_ROWS = 16
SPLITS = (1, 2, 4, 8)  # blocks of a cluster
STEP_K = 256  # FourBitMatmulSm90Tile::step_k

# Commits whose kernel for many rows was an older one. Costs are not fitted to their lines, which still help to find
# from how many rows on that kernel is faster than mma.sync.
OLDER_MANY_ROWS = ("8b5bb52d",)

MIN_LINES = 20  # of a kernel; with fewer of any, the estimates stay
# A number of clusters fits the results as well as the best one if its sum of squares is at most so many times as large.
SAME_SQUARES = 1.05


@dataclasses.dataclass
class Sm90Plan:
    """Each member with the texts of the runs that it is from; no texts if it is an estimate."""

    clusters: tuple  # of 1, 2, 4 and 8 blocks
    of_clusters: list
    few_rows: dict  # {FewRowsTile: FewRowsCosts}
    of_few_rows: list
    many_rows: dict  # {ManyRowsTile: ManyRowsCosts}
    of_many_rows: list


def ceil_div(a, b):
    return -(-a // b)


# -- The estimates, as in four_bit_matmul_config.cpp


def few_rows_factors(clusters, tile, tile_n, splits, m, n, k):
    """How often each cost of FewRowsCosts counts."""
    turns = max(1, ceil_div(ceil_div(n, tile_n), clusters[SPLITS.index(splits)]))
    steps = turns * ceil_div(max(1, ceil_div(k, 64 * tile.k_warps)), splits)
    return steps, steps * m, steps * (tile_n // 16), turns * ceil_div(m, 8), turns if splits > 1 else 0


def many_rows_factors(clusters, tile, tile_n, splits, m, n, k):
    """How often each cost of ManyRowsCosts counts."""
    items = ceil_div(n, tile_n) * ceil_div(m, tile.rows)
    turns = max(1, ceil_div(items, clusters[SPLITS.index(splits)]))
    steps = turns * ceil_div(max(1, ceil_div(k, STEP_K)), splits)
    adds = splits > 1 or tile.k_warpgroups > 1
    return steps, steps * (tile_n // 64), turns * ceil_div(min(m, tile.rows), 32) if adds else 0, 1


def few_rows_launches(clusters, tile, n, k):
    """(tile_n, splits) that the plan compares."""
    steps, block_n = max(1, ceil_div(k, 64 * tile.k_warps)), 32 * tile.n_warps
    for splits, at_a_time in zip(SPLITS, clusters):
        if splits <= steps:
            turns = max(1, ceil_div(n, at_a_time * block_n))
            yield block_n if splits > 2 else max(1, ceil_div(n, at_a_time * turns * 16)) * 16, splits


def many_rows_launches(tile, m, n, k):
    """(tile_n, splits) that the plan compares."""
    steps, block_n = max(1, ceil_div(k, STEP_K)), 64 * tile.n_warpgroups
    for splits in SPLITS:
        for tile_n in range(block_n, block_n // 2 - 1, -64):
            items = ceil_div(n, tile_n) * ceil_div(m, tile.rows)
            if splits <= steps and (splits == 1 or items * splits <= 2 * MULTIPROCESSORS_TO_FILL):
                yield tile_n, splits


def dot(costs, factors):
    return sum(cost * factor for cost, factor in zip(costs, factors))


def few_rows_config(plan, m, n, k):
    """The cheapest launch, and of equally cheap ones the first."""
    launches = []
    for tile, costs in plan.few_rows.items():
        low, high = FEW_ROWS_TILES[tile]
        if low <= m <= high:
            for tile_n, splits in few_rows_launches(plan.clusters, tile, n, k):
                factors = few_rows_factors(plan.clusters, tile, tile_n, splits, m, n, k)
                launches.append(Launch(tile, tile_n, splits, dot(costs, factors)))
    return min(launches, key=lambda launch: launch.cost)


def many_rows_config(plan, m, n, k):
    """The same for many rows."""
    launches = []
    for tile, costs in plan.many_rows.items():
        for tile_n, splits in many_rows_launches(tile, m, n, k):
            factors = many_rows_factors(plan.clusters, tile, tile_n, splits, m, n, k)
            launches.append(Launch(tile, tile_n, splits, dot(costs, factors)))
    return min(launches, key=lambda launch: launch.cost)


# -- What they are fitted to


def few_rows_lines(lines):
    """Those for which the plan takes the kernel, of all tiles: also of some that are not compiled."""
    return [line for line in lines if line.stage == "few-rows" and line.m <= MAX_M_OF_FEW_ROWS]


def many_rows_lines(lines):
    """Those of wgmma, of all tiles, from runs whose kernel for many rows is not an older one."""
    return [line for line in lines if line.stage == "rows" and line.tile and not is_older(line.run.commit)]


def is_older(commit):
    """Whether the run was of one of OLDER_MANY_ROWS, however many digits of it are given, or of no known commit."""
    digits = (commit or "").removesuffix("-dirty")
    return not digits or any(digits.startswith(older) or older.startswith(digits) for older in OLDER_MANY_ROWS)


def factors_of(line, clusters):
    factors = few_rows_factors if line.stage == "few-rows" else many_rows_factors
    return factors(clusters, line.tile, line.tile_n, line.splits, line.m, line.n, line.k)


def equations(case, clusters):
    """For each line of a case: its tile, then the factors of the costs, the time, and 1 for what the case adds; these
    are divided by the time, for relative errors, and multiplied by the weight of the line."""
    fastest = min(line.time for line in case)
    for line in case:
        weight = (fastest / line.time) ** 2
        scale = weight / (1e3 * line.time)
        yield line.tile, [scale * factor for factor in factors_of(line, clusters)], weight, scale


def without_offset(rows, values, offsets):
    """The same equations with the offset eliminated: from each column its projection on the column of offsets is taken
    away, so that the costs found are the same as if the offset were fitted along with them."""
    square = dot(offsets, offsets)

    def rest(column):
        share = dot(offsets, column) / square
        return [value - share * offset for value, offset in zip(column, offsets)]

    return list(zip(*map(rest, zip(*rows)))), rest(values)


def fitted_few_rows(lines, clusters):
    """({FewRowsTile: FewRowsCosts}, the sum of squares) with these numbers of clusters.

    What every launch of a case takes, such as its start and reading the weight, has no say in the choice. So each case
    has an offset of its own besides the costs, which are the same for all cases.
    """
    width, tiles = len(FewRowsCosts._fields), list(FEW_ROWS_TILES)
    rows, values = [], []
    for case in by(lines, lambda line: line.case).values():
        own_rows, own_values, offsets = [], [], []
        for tile, factors, value, offset in equations(case, clusters):
            before = width * tiles.index(tile)
            own_rows.append([0.0] * before + factors + [0.0] * (width * len(tiles) - before - width))
            own_values.append(value)
            offsets.append(offset)
        own_rows, own_values = without_offset(own_rows, own_values, offsets)
        rows += own_rows
        values += own_values
    found = least_squares(rows, values)
    costs = [FewRowsCosts(*map(round, found[width * i : width * (i + 1)])) for i in range(len(tiles))]
    return dict(zip(tiles, costs, strict=True)), squares_of(rows, values, found)


def fitted_many_rows(lines, clusters):
    """({ManyRowsTile: ManyRowsCosts}, the sum of squares) with these numbers of clusters; a fit for each kernel."""
    of_tiles = {tile: ([], []) for tile in MANY_ROWS_TILES}
    for case in by(lines, lambda line: line.case).values():
        for tile, factors, value, _ in equations(case, clusters):
            of_tiles[tile][0].append(factors)
            of_tiles[tile][1].append(value)
    costs, squares = {}, 0.0
    for tile, (rows, values) in of_tiles.items():
        found = least_squares(rows, values)
        costs[tile] = ManyRowsCosts(*map(round, found))
        squares += squares_of(rows, values, found)
    return costs, squares


def squares_of(rows, values, factors):
    return sum((dot(factors, row) - value) ** 2 for row, value in zip(rows, values))


def fitted_clusters(few, many):
    """How many clusters of 1, 2, 4 and 8 blocks run at a time. Beyond that number, clusters take another turn.

    For 2, 4 and 8 blocks it is the number by which the estimates fit best. Where several fit within SAME_SQUARES, it is
    the one in the middle.
    """
    clusters = [MULTIPROCESSORS_TO_FILL // splits for splits in SPLITS]
    families = [(fit, lines) for fit, lines in ((fitted_few_rows, few), (fitted_many_rows, many)) if lines]
    known = {}  # a fit depends only on how many steps each launch has

    def squares(some):
        total = 0.0
        for fit, lines in families:
            key = fit, *(factors_of(line, some)[0] for line in lines)
            if key not in known:
                known[key] = fit(lines, some)[1]
            total += known[key]
        return total

    # Twice, because each number is found more sharply if the others are right.
    for i in (1, 2, 3) * 2:
        most = MULTIPROCESSORS_TO_FILL // SPLITS[i]
        tried = {one: squares((*clusters[:i], one, *clusters[i + 1 :])) for one in range(most * 2 // 3, most + 1)}
        good = [one for one, value in tried.items() if value <= SAME_SQUARES * min(tried.values())]
        clusters[i] = (good[0] + good[-1]) // 2
    return tuple(clusters)


def has_enough(lines, tiles):
    count = collections.Counter(line.tile for line in lines)
    return all(count[tile] >= MIN_LINES for tile in tiles)


def sm90_plan_of(all_lines):
    few = [line for line in few_rows_lines(all_lines) if line.tile in FEW_ROWS_TILES]
    many = [line for line in many_rows_lines(all_lines) if line.tile in MANY_ROWS_TILES]
    few, many = few if has_enough(few, FEW_ROWS_TILES) else [], many if has_enough(many, MANY_ROWS_TILES) else []
    clusters = fitted_clusters(few, many) if few or many else CLUSTERS
    few_rows = dict(zip(FEW_ROWS_TILES, map(FewRowsCosts._make, FEW_ROWS_COSTS), strict=True))
    many_rows = dict(zip(MANY_ROWS_TILES, map(ManyRowsCosts._make, MANY_ROWS_COSTS), strict=True))
    return Sm90Plan(
        clusters=clusters,
        of_clusters=texts_of(few + many),
        few_rows=fitted_few_rows(few, clusters)[0] if few else few_rows,
        of_few_rows=texts_of(few),
        many_rows=fitted_many_rows(many, clusters)[0] if many else many_rows,
        of_many_rows=texts_of(many),
    )


# -- How good the choice is


def line_of_plan(plan, case):
    """Of the lines of a case, the one whose launch the plan takes; None if that was not measured."""
    config = few_rows_config if case[0].stage == "few-rows" else many_rows_config
    launch = config(plan, case[0].m, case[0].n, case[0].k)
    return next((line for line in case if (line.tile, line.tile_n, line.splits) == launch[:3]), None)


def slowdowns(plan, lines):
    """For each case whose launch of the plan was measured, how much longer than the fastest it takes, as a share."""
    for case in by(lines, lambda line: line.case).values():
        if own := line_of_plan(plan, case):
            yield own.time / min(line.time for line in case) - 1
