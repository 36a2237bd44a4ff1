#!/usr/bin/env python3
"""What bench/kernels/tune/tune_table.py makes of results whose answer is known: times by the plan's own estimate.

usage: tests/bench/kernels/tune_table_test.py

It is one file, because all tests write the table from lines of the same few builders.
"""

import contextlib
import io
import itertools
import json
import pathlib
import re
import sys
import tempfile
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "bench" / "kernels" / "tune"))

from tune_plan import (  # noqa: E402
    DEFAULT_INT8_TILES,
    DEFAULT_LOOP,
    DEFAULT_TILES,
    SHORT_RUNS,
    Costs,
    min_blocks,
    plan_of,
    rounded,
)
from tune_results import FewRowsTile, Int8Tile, Loop, ManyRowsTile, Tile, read_results, texts_of  # noqa: E402
from tune_sm90 import (  # noqa: E402
    FEW_ROWS_TILES,
    MANY_ROWS_TILES,
    OLDER_MANY_ROWS,
    SPLITS,
    FewRowsCosts,
    ManyRowsCosts,
    dot,
    equations,
    few_rows_config,
    few_rows_factors,
    few_rows_lines,
    fitted_clusters,
    many_rows_config,
    many_rows_factors,
    many_rows_lines,
    slowdowns,
    sm90_plan_of,
)
from tune_squares import least_squares  # noqa: E402
from tune_table import commented, number, text_of  # noqa: E402
from tune_table import main as tune_table  # noqa: E402

BYTES_PER_US = 3_000_000.0
KNOWN = Costs(40_000, 9_000, 1_200_000)
SHAPES, ROWS = ("4096x4096", "14336x4096", "28672x8192"), (1, 4, 8, 16, 32, 64)
LOOP = 1.1  # how much slower than plain reads the loop reads


def expect(condition, text):
    if not condition:
        raise SystemExit(f"error: bench/kernels/tune/tune_table.py: {text}")


def time_of(n, k, m, tile, splits, keeps_x, known=KNOWN):
    slots = 132 * min_blocks(tile)
    is_int8 = isinstance(tile, Int8Tile)
    groups = tile.groups if is_int8 else 4 // tile.n_tiles
    block_n, block_k = 16 * tile.n_tiles * tile.n_warps, 64 * groups * tile.k_warps
    turns = -(-(-(-n // block_n) * splits) // slots)
    k_of_a_split = -(-(-(-k // block_k)) // splits) * block_k
    of_a_tile = block_n * k_of_a_split * (64 if is_int8 else 33) // 64 + (0 if keeps_x else m * k_of_a_split)
    cost = slots * (turns * (of_a_tile + known.bytes_of_an_end) + known.bytes_of_a_start)
    cost += splits * m * n * 4 + known.bytes_of_adding if splits > 1 else 0
    return LOOP * cost / BYTES_PER_US


def result(shape, m, stage, change, tile, splits=1, loop=DEFAULT_LOOP, keeps_x=False, is_resident=True,
           factor=1.0, known=KNOWN):  # fmt: skip
    n, k = map(int, shape.split("b")[0].split("x"))
    variant = {**tile._asdict(), **loop._asdict(), "keeps_x": keeps_x, "splits": splits, "overlaps": False,
               "is_resident": is_resident}  # fmt: skip
    return {"step": f"variants/{shape}", "name": "any", "shape": shape, "m": m, "stage": stage, "change": change,
            "default": False, "variant": variant,
            "median": factor * time_of(n, k, m, tile, splits, keeps_x, known)}  # fmt: skip


def int8_result(shape, m, tile, splits=1, factor=1.0, known=KNOWN):
    n, k = map(int, shape.split("x"))
    return {"step": "variants/int8", "name": "any", "shape": shape, "m": m, "default": False,
            "int8_variant": {**tile._asdict(), "splits": splits},
            "median": factor * time_of(n, k, m, tile, splits, False, known)}  # fmt: skip


def device(multiprocessors=132, capability=90):
    yield {"kind": "run", "date": "later", "commit": "another"}
    yield {"step": "table", "kind": "device", "gpu": "another", "capability": 1, "multiprocessors": 1, "date": "never"}
    yield {"step": "variants/4096x4096", "kind": "device", "gpu": "a device", "capability": capability,
           "multiprocessors": multiprocessors, "date": "2027-01-02"}  # fmt: skip
    yield {"step": "table", "name": "read/kernel", "gb_s": 1}
    yield {"step": "variants/4096x4096", "name": "read/kernel", "gb_s": BYTES_PER_US / 1e3}


def read(*files):
    with tempfile.TemporaryDirectory() as folder:
        return read_results(write(pathlib.Path(folder), *files))


def write(folder, *files):
    paths = []
    for i, lines in enumerate(files):
        paths.append(folder / f"tune_{i}.jsonl")
        paths[-1].write_text("".join(json.dumps(line) + "\n" for line in lines))
    return paths


def table_of(*files):
    return text_of(plan_of(read(*files)))


def has(text, *parts):
    for part in parts:
        expect(part in text, f"{part!r} is not in\n{text}")


def tile_results(known=KNOWN):
    """All tiles of one m_tiles."""
    tiles = [Tile(1, 4, 2, 2), *DEFAULT_TILES[1]]
    for shape, m, tile, splits in itertools.product(SHAPES, (1, 4, 8), tiles, (1, 2, 4)):
        if m <= 4 or tile.n_tiles == 2:
            yield result(shape, m, "tiles", "none", tile, splits, known=known)


def costs_of(text, weight="four_bit"):
    """What the table has for weights of that kind."""
    return text.split(f"namespace {weight}_matmul {{")[1].split(" costs{")[1].split("}")[0]


def test_costs():
    text = table_of([*device(), *tile_results()])
    for name in Costs._fields:
        has(text, f".{name} = {number(rounded(getattr(KNOWN, name)))},")
    has(text, "bench/results/tune_0.jsonl, a device, 2027-01-02.")
    slower = table_of([*device(), *({**line, "median": 2 * line["median"]} for line in tile_results())])
    expect(costs_of(slower) == costs_of(text), "costs depend on how fast the loop is")
    changed = result(SHAPES[0], 1, "loops", "none", DEFAULT_TILES[1][0], factor=3)
    others = table_of([*device(), *tile_results(), *[changed] * 30])
    expect(costs_of(others) == costs_of(text), "costs depend on changes")
    more = [result(SHAPES[0], 16, "tiles", "none", DEFAULT_TILES[2][0], factor=3)] * 30
    expect(costs_of(table_of([*device(), *tile_results(), *more])) == costs_of(text),
           "costs depend on products of more than 8 rows")  # fmt: skip
    kept = [result(shape, 8, "tiles", "none", DEFAULT_TILES[1][0], splits, keeps_x=True)
            for shape, splits in itertools.product(SHAPES, (1, 2, 4))] * 5  # fmt: skip
    text = table_of([*device(), *tile_results(), *kept])
    for name in Costs._fields:
        has(text, f".{name} = {number(rounded(getattr(KNOWN, name)))},")
    found = least_squares([[1, 0], [0, 1], [1, 1]], [1, -1, 1])
    expect(abs(found[0] - 1) < 1e-9 and found[1] == 0, f"the factors that are not below zero are {found}")
    # Splits that cost less than nothing are a mistake of the measurement.
    cheap = table_of([*device(), *tile_results(KNOWN._replace(bytes_of_adding=-500_000))])
    has(cheap, ".bytes_of_adding = 0,", "bench/results/tune_0.jsonl")
    # Nor can a product of more bytes take less time.
    longest = max(line["median"] for line in tile_results())
    backwards = table_of([*device(), *({**line, "median": 2 * longest - line["median"]} for line in tile_results())])
    has(backwards, "// An estimate, not measured: instructions")
    few = table_of([*device(), *itertools.islice(tile_results(), 10)])
    has(few, "// An estimate, not measured: instructions", ".bytes_of_a_start = 24'000,")


def test_tiles():
    better, worse = Tile(2, 8, 1, 2), DEFAULT_TILES[2][0]
    factors = {better: 0.8, worse: 1.2, DEFAULT_TILES[2][1]: 0.9}
    lines = [{**result(SHAPES[0], 16, "tiles", "none", tile), "median": factor} for tile, factor in factors.items()]
    text = table_of([*device(), *lines])
    has(text, "{{.m_tiles = 2, .n_warps = 8, .k_warps = 1}, 9, 16},", "std::array<Choice, 8>")
    same = [{**line, "median": 1.0} for line in lines]
    same += [{**line, "stage": "loops", "median": 0.1} for line in lines if line["variant"]["n_warps"] == 8]
    expect("n_warps = 8, .k_warps = 1}, 9" not in table_of([*device(), *same]), "a tile changes without a reason")
    # With n_tiles = 1 a kernel takes four rows: the fastest one for them is not enough for eight.
    tile = DEFAULT_TILES[1][2]
    lines = [{**result(SHAPES[0], m, "tiles", "none", other), "median": 1.0 + (other != tile)}
             for m in (1, 8) for other in (Tile(1, 4, 2, 2), tile) if m == 1 or other != tile]  # fmt: skip
    has(table_of([*device(), *lines]), ".n_tiles = 1}, 0, 4},", "{{.m_tiles = 1, .n_warps = 4, .k_warps = 2}, 0, 8},")


def loop_results(changes, tile=DEFAULT_TILES[4][0]):
    for shape in SHAPES:
        yield result(shape, 32, "loops", "none", tile)
        for change, loop, factor in changes:
            yield result(shape, 32, "loops", change, tile, loop=loop, factor=factor)


def test_loops():
    changes = [("barrier", Loop("block", True, 0), 0.97), ("loads_first", Loop("group", False, 0), 1.01),
               ("prefetched_steps", Loop("group", True, 1), 0.95), ("prefetched_steps", Loop("group", True, 3), 0.9)]  # fmt: skip
    text = table_of([*device(), *loop_results(changes)])
    has(text, ".k_warps = 2, .barrier = XBarrier::block, .prefetched_steps = 3}, 17, 32},")
    text = table_of([*device(), *loop_results([(change, loop, 0.995) for change, loop, _ in changes])])
    has(text, "{{.m_tiles = 4, .n_warps = 4, .k_warps = 2}, 17, 32},")
    text = table_of([*device(), *loop_results([("loads_first", Loop("group", False, 0), 0.8)])])
    has(text, ".loads_first = false}, 17, 32},")


def test_devices():
    tile = DEFAULT_TILES[1][0]

    def lines(grid, kept):
        for shape, m in itertools.product(SHAPES[:2], (1, 4, 8)):
            yield result(shape, m, "loops", "none", tile)
            yield result(shape, m, "loops", "grid", tile, is_resident=False, factor=grid)
            line = result(shape, m, "loops", "keeps_x", tile, keeps_x=True)
            yield {**line, "median": kept[m] * result(shape, m, "loops", "none", tile)["median"]}

    text = table_of([*device(), *lines(0.9, {1: 0.9, 4: 0.95, 8: 1.1})], [*device(114), *lines(1.1, {1: 2, 4: 1, 8: 1})],
                    [*device(108, 80), *lines(1, {1: 0.9, 4: 0.9, 8: 0.9})])  # fmt: skip
    rows = [line.strip() for line in text.split("devices{{")[1].split("}};")[0].splitlines() if line.strip().startswith("{")]
    wanted = ["{90, 132, 32'768, false},", "{90, 114, 0, true},", "{80, 108, 101'376, true},", "{90, 0, 101'376, true},",
              "{0, 0, 0, true},"]  # fmt: skip
    expect(rows == wanted, f"the rows of devices are {rows}")
    has(
        text,
        "std::array<DeviceTuning, 5>",
        "    // bench/results/tune_1.jsonl, a device, 2027-01-02.",
        "u64 bytes_of_kept_x = 0;",
    )


def test_devices_whose_x_was_not_kept():
    lines = [result(SHAPES[0], 1, "tiles", "none", DEFAULT_TILES[1][0])]
    text = table_of([*device(), *lines], [*device(108, 80), *lines])
    has(text, "{90, 132, 101'376, true},", "{80, 108, 0, true},")


def test_many_rows():
    def lines(wgmma):
        for shape, (m, ratio) in itertools.product(SHAPES, wgmma.items()):
            for kernel, splits, time in (("mma", 1, 10), ("wgmma", 1, 10 * ratio), ("wgmma", 2, 20)):
                yield {**rows_result(shape, m, kernel, time), "splits": splits}

    for wgmma, expected in [({33: 1.2, 64: 0.9, 128: 0.7}, 64), ({33: 0.9, 64: 1.1, 128: 0.7}, 128),
                            ({33: 0.9, 64: 0.8}, 33), ({64: 1.2, 128: 1.1}, 129),
                            ({24: 0.9, 64: 0.8}, 17), ({24: 1.1, 32: 0.9}, 32)]:  # fmt: skip
        text = table_of([*device(), *lines(wgmma)])
        has(
            text,
            f"/// bench/results/tune_0.jsonl, a device, 2027-01-02.\ninline constexpr u64 min_m_of_sm90 = {expected};",
        )
    # Where the kernel for few rows ends, those decide that have so few.
    two = table_of([*device(), *lines({33: 0.9})], [*device(108, 80), *lines({24: 0.9, 64: 0.9})])
    has(two, "/// bench/results/tune_1.jsonl, a device, 2027-01-02.\ninline constexpr u64 min_m_of_sm90 = 17;")
    has(
        table_of([*device(), *itertools.islice(lines({64: 0.5}), 1)]),
        "not measured.\ninline constexpr u64 min_m_of_sm90 = 65;",
    )


def rows_result(shape, m, kernel, time):
    return {"step": "many-rows", "name": "any", "shape": shape, "m": m, "kernel": kernel, "splits": 2, "default": True,
            "median": time}  # fmt: skip


# -- The kernels that TMA feeds. So many clusters of 1, 2, 4 and 8 blocks run at a time.
CLUSTERS = (132, 64, 29, 14)
FEW_ROWS = dict(zip(FEW_ROWS_TILES, itertools.starmap(FewRowsCosts, (
    (40, 20, 110, 600, 900), (170, 9, 22, 800, 850), (380, 3, 33, 550, 1300), (190, 2, 31, 750, 1000)))))  # fmt: skip
MANY_ROWS = dict(zip(MANY_ROWS_TILES, itertools.starmap(ManyRowsCosts, (
    (620, 310, 2100, 3200), (450, 250, 2400, 2200), (740, 410, 2300, 3100), (510, 450, 2200, 3000), (550, 330, 2800, 2000),
    (820, 540, 2400, 2300), (910, 630, 2200, 2250)))))  # fmt: skip
# With tiles of 128 of n: 64 and 65 of them, 29 and 30, 14 and 15.
SM90_N = (8192, 8320, 3712, 3840, 1792, 1920)


def few_rows_result(n, m, tile, tile_n, splits, factor=1.0):
    name = f"few-rows/{n}x4096/m{m}/tile{tile.m_tiles}x{tile.n_warps}x{tile.k_warps}/n{tile_n}/splits{splits}"
    costs = FEW_ROWS.get(tile, FewRowsCosts(1, 1, 1, 1, 1))
    time = 2000 + n / 4 + 30 * m + dot(costs, few_rows_factors(CLUSTERS, tile, tile_n, splits, m, n, 4096))
    return {"step": "few-rows", "name": name, "shape": f"{n}x4096", "m": m, "tile_n": tile_n, "splits": splits,
            "default": False, "median": factor * time / 1e3}  # fmt: skip


def few_rows_results():
    for n, m, tile, splits in itertools.product(SM90_N, (1, 8, 16), FEW_ROWS_TILES, SPLITS):
        for tile_n in (32 * tile.n_warps, 16 * tile.n_warps):
            if m <= 8 * tile.m_tiles and splits * 64 * tile.k_warps <= 4096:
                yield few_rows_result(n, m, tile, tile_n, splits)


def many_rows_result(n, m, tile, tile_n, splits, factor=1.0):
    kernel = f"wgmma{tile.rows}x{tile.n_warpgroups}x{tile.k_warpgroups}v1"
    name = f"many-rows/{n}x4096/m{m}/{kernel}/n{tile_n}/splits{splits}"
    costs = MANY_ROWS.get(tile, ManyRowsCosts(1, 1, 1, 1))
    time = dot(costs, many_rows_factors(CLUSTERS, tile, tile_n, splits, m, n, 4096))
    return {"step": "many-rows", "name": name, "shape": f"{n}x4096", "m": m, "kernel": "wgmma", "splits": splits,
            "default": False, "median": factor * time / 1e3}  # fmt: skip


def many_rows_results():
    for n, m, tile, splits in itertools.product(SM90_N, (32, 64, 128), MANY_ROWS_TILES, SPLITS):
        for tile_n in (64 * tile.n_warpgroups, 64):
            yield many_rows_result(n, m, tile, tile_n, splits)


def sm90_of(text):
    return text.split("/// How many clusters of")[1].split("/// The first row that a device fits")[0]


def test_sm90_costs():
    """The fit finds the costs that times were made of, and the numbers of clusters; other lines change nothing."""
    lines = [*device(), *few_rows_results(), *many_rows_results()]
    own = sm90_of(table_of(lines))
    has(own, "clusters_to_fill{132, 64, 29, 14};")
    for tile, costs in FEW_ROWS.items():
        members = f".m_tiles = {tile.m_tiles}, .n_warps = {tile.n_warps}, .k_warps = {tile.k_warps}"
        has(own, f"    {{{{{members}}}, {', '.join(map(number, (*FEW_ROWS_TILES[tile], *costs)))}}},")
    for tile, costs in MANY_ROWS.items():
        members = f".rows = {tile.rows}, .n_warpgroups = {tile.n_warpgroups}, .k_warpgroups = {tile.k_warpgroups}"
        has(own, f"    {{{{{members}}}, {', '.join(map(number, costs))}}},")
    run = "/// bench/results/tune_0.jsonl, a device, 2027-01-02.\n"
    expect(own.count(run + "inline constexpr std::array<") == 3, f"the runs of the figures are not said in\n{own}")
    # Kernels that are not compiled, and rows that this kernel does not take.
    others = []
    for splits in SPLITS:
        others += [few_rows_result(1792, 16, FewRowsTile(4, 4, 4), 64, splits, factor=9)]
        others += [few_rows_result(1792, 8, FewRowsTile(1, 2, 8), 64, splits, factor=9)]
        others += [few_rows_result(1792, 24, tile, 32, splits, factor=splits) for tile in FEW_ROWS_TILES]
    others += [many_rows_result(1792, 64, ManyRowsTile(64, 1, 1), 64, splits, factor=9) for splits in SPLITS]
    expect(sm90_of(table_of([*lines, *others * 9])) == own, "costs depend on other kernels or rows")
    # Those of an older kernel, in a file of their own or in the same one.
    older = [{"kind": "run", "commit": OLDER_MANY_ROWS[0]}, *[*device()][2:-1],
             *(many_rows_result(n, 64, tile, 64, splits, factor=1 + splits)
               for n, tile, splits in itertools.product(SM90_N, MANY_ROWS_TILES, SPLITS))]  # fmt: skip
    expect(sm90_of(table_of(lines, older)) == own, "costs depend on an older kernel")
    expect(sm90_of(table_of([*lines, *older])) == own, "costs depend on an older kernel in the same file")
    for commit in (OLDER_MANY_ROWS[0] + "-dirty", OLDER_MANY_ROWS[0][:7], OLDER_MANY_ROWS[0] + "0123", None):
        found = sm90_of(table_of(lines, [{**older[0], "commit": commit}, *older[1:]]))
        expect(found == own, f"costs depend on an older kernel whose commit is {commit}")
    newer = [{**older[0], "commit": "another"}, *older[1:]]
    expect(sm90_of(table_of(lines, newer)) != own, "a second run does not count")


def test_sm90_clusters():
    """Of the numbers that no launch tells apart, the one in the middle: 60 to 66, 28 and 29, 14."""
    lines = read([*device(), *(line for line in few_rows_results() if line["shape"] in ("1792x4096", "1920x4096"))])
    found = fitted_clusters(lines, [])
    expect(found == (132, 63, 28, 14), f"{found} clusters run at a time")


def test_sm90_estimates():
    """Without results of each of the kernels there are estimates, for each of the two families by itself."""
    nothing = sm90_of(table_of())
    has(nothing, "clusters_to_fill{132, 66, 33, 16};", "k_warps = 16}, 0, 8, 150, 11, 256, 450, 2'500},",
        "{{.rows = 128, .n_warpgroups = 2, .k_warpgroups = 1}, 1'000, 600, 2'500, 2'000},")  # fmt: skip
    expect(nothing.count("/// An estimate, not measured.\n") == 3, f"estimates are not called so in\n{nothing}")
    lacking = [line for line in few_rows_results() if "tile2x2x8" not in line["name"]]
    lacking += [line for line in many_rows_results() if "wgmma96x3x1" not in line["name"]]
    expect(sm90_of(table_of([*device(), *lacking])) == nothing, "costs are fitted although a kernel was not measured")
    few = sm90_of(table_of([*device(), *few_rows_results()]))
    has(few, "clusters_to_fill{132, 64, 29, 14};")
    of_many = [text.split("/// The kernels of FourBitMatmulSm90")[1] for text in (few, nothing)]
    expect(of_many[0] == of_many[1], "few rows change the costs for many")
    expect(few.count("/// An estimate, not measured.\n") == 1, f"more than one estimate in\n{few}")


def test_sm90_weights():
    """The error of a launch that takes twice as long as the fastest counts a quarter."""
    line = many_rows_result(1792, 64, ManyRowsTile(128, 2, 1), 128, 1)
    case = read([*device(), {**line, "median": 4.0}, {**line, "median": 8.0}])
    found = [(value, offset) for _, _, value, offset in equations(case, CLUSTERS)]
    expect(found == [(1.0, 1 / 4000), (0.25, 1 / 32000)], f"the weights are {found}")
    (_, factors, _, _), _ = equations(case, CLUSTERS)
    expect(factors == [16 / 4000, 32 / 4000, 0, 1 / 4000], f"the factors are {factors}")


def test_sm90_reading():
    (few,) = read([*device()][:-1] + [few_rows_result(1792, 8, FewRowsTile(1, 4, 4), 112, 2)])
    own = (few.stage, few.tile, few.tile_n, few.splits, few.m, few.n, few.k, few.run.commit)
    wanted = ("few-rows", FewRowsTile(1, 4, 4), 112, 2, 8, 1792, 4096, "another")
    expect(own == wanted, f"a line of few rows is read as {own}")
    nameless = {**few_rows_result(1792, 8, FewRowsTile(1, 4, 4), 112, 2), "name": "few-rows/no"}
    try:
        read([*[*device()][:-1], nameless])
        expect(False, "a line without a tile is read")
    except ValueError as error:
        expect(str(error) == "tune_0.jsonl: few-rows/no names no tile", f"it is refused with: {error}")
    line = many_rows_result(1792, 64, ManyRowsTile(64, 3, 1), 192, 4)
    for name in (line["name"], line["name"].replace("v1", "")):
        (many,) = read([{"kind": "run", "commit": "one"}, *[*device()][1:], {**line, "name": name}])
        own = (many.stage, many.change, many.tile, many.tile_n, many.splits, many.run.commit)
        expect(own == ("rows", "wgmma", ManyRowsTile(64, 3, 1), 192, 4, "one"), f"a line of many rows is read as {own}")
    expect(many_rows_lines([many]) == [many] and few_rows_lines([few, many]) == [few], "lines are mixed up")


def test_sm90_choices():
    """The estimates are those of the library, whose tests know some of its choices; and they find fast launches."""
    committed = read_results(sorted((ROOT / "bench" / "results").glob("tune*.jsonl")))
    plan = sm90_plan_of(committed)
    expect(plan.clusters == (132, 66, 30, 13), f"{plan.clusters} clusters run at a time")  # docs/four-bit-matmul.md
    path = ROOT / "tests" / "kernels" / "host" / "matmul" / "four_bit" / "four_bit_matmul_config_test.cpp"
    _, many, few = re.split(r"ManyRowsHaveAKernel|FewRowsHaveAKernel", path.read_text(encoding="utf-8"))
    for text, config, least in ((many, many_rows_config, 15), (few, few_rows_config, 12)):
        known = re.findall(r"EXPECT_EQ\(plan\((\d+), (\d+), (\d+)\), \(Plan\{(\d+), (\d+), (\d+)\}\)\);", text)
        expect(len(known) >= least, f"{path} has only {len(known)} known choices")
        for m, n, k, *wanted in (map(int, one) for one in known):
            launch = config(plan, m, n, k)
            size = launch.tile.n_warps if config is few_rows_config else launch.tile.rows
            found = [size, launch.tile_n, launch.splits]
            expect(found == wanted, f"{m} x {n} x {k} has {found}, and in the library {wanted}")
    # Turns, steps and rows as in the same test: 7 x 8, 2 x 32, 1 x 16, and 1 x 4 in a cluster.
    for m, n, k, wanted in ((1, 28672, 8192, (56, 56, 112, 7, 0)), (8, 28672, 8192, (64, 512, 448, 2, 0)),
                            (16, 14336, 4096, (16, 256, 112, 2, 0)), (16, 4096, 4096, (4, 64, 16, 2, 1))):  # fmt: skip
        launch = few_rows_config(plan, m, n, k)
        found = few_rows_factors(plan.clusters, *launch[:3], m, n, k)
        expect(found == wanted, f"{m} x {n} x {k} has the factors {found}")
    for m, n, k, wanted in ((256, 28672, 8192, (128, 256, 0, 1)), (64, 14336, 4096, (16, 32, 0, 1)),
                            (128, 4096, 4096, (8, 16, 2, 1))):  # fmt: skip
        launch = many_rows_config(plan, m, n, k)
        found = many_rows_factors(plan.clusters, *launch[:3], m, n, k)
        expect(found == wanted, f"{m} x {n} x {k} has the factors {found}")
    for own in (few_rows_lines(committed), many_rows_lines(committed)):
        slower = list(slowdowns(plan, own))
        expect(len(slower) == len({line.case for line in own}), "a launch of the plan was not measured")
        expect(sum(slower) / len(slower) < 0.005, f"the plan's launches take longer by {slower}")


def test_reading():
    """Each member of a line comes from its own in the file; lines of other steps and lines without a time are none."""
    tile, loop = Tile(2, 4, 2, 2, 32), Loop("block", False, 3)
    line = {**result("14336x4096b32", 16, "loops", "barrier", tile, 4, loop, keeps_x=True, is_resident=False),
            "default": True, "median": 7.5}  # fmt: skip
    line["variant"]["overlaps"] = True
    failed = {key: value for key, value in line.items() if key != "median"}
    other = {**line, "step": "table/14336x4096b32"}
    (found,) = read([*device(114, 80), {**failed, "error": "CUDA"}, other, line])
    expected = {"shape": "14336x4096b32", "n": 14336, "k": 4096, "m": 16, "stage": "loops", "change": "barrier",
                "tile": tile, "loop": loop, "keeps_x": True, "splits": 4, "overlaps": True, "is_resident": False,
                "is_default": True, "time": 7.5}  # fmt: skip
    expect({name: getattr(found, name) for name in expected} == expected, f"a line is read as {found}")
    run = (found.run.capability, found.run.multiprocessors, found.run.bytes_per_us, found.run.text)
    expect(run == (80, 114, BYTES_PER_US, "bench/results/tune_0.jsonl, a device, 2027-01-02"), f"a run is read as {run}")
    (found,) = read([*device(), rows_result("4096x4096", 64, "wgmma", 9.0)])
    few = (found.stage, found.change, found.m, found.splits, found.is_default, found.time, found.tile)
    expect(few == ("rows", "wgmma", 64, 2, True, 9.0, None), f"a line of many rows is read as {few}")
    (found,) = read([*[*device()][:-1], rows_result("4096x4096", 64, "wgmma", 9.0), line])
    expect(found.stage == "rows", "without a bandwidth, many rows are not all that is read")
    for lacking in ([*device()][:-1], [*device()][-1:], []):
        expect(read([*lacking, line]) == [], "results without a device or its bandwidth are used")
    texts = texts_of(read(*[[*device(), line]] * 9))
    expect(texts == sorted(texts) and len(texts) == 9, "the order of the results is left to chance")
    # Without a step, as bench_tune prints them.
    expect(len(read([{k: v for k, v in one.items() if k != "step"} for one in (*[*device()][2:3], [*device()][-1], line)]))
           == 1, "what bench_tune prints is not read")  # fmt: skip
    cases = {one.case for one in read([*device(), line, {**line, "shape": "14336x4096"}])}
    expect(len(cases) == 2, "a shape with blocks of 32 is taken for the one with blocks of 64")


def test_short_runs():
    """Kernels of a run are chosen by what that run's took, and change nothing of those for other runs."""
    lines = [*device(), *tile_results()]
    before = table_of(lines)

    def shape_of(run):
        return {32: "4096x4096b32", 16: "16384x4304", 8: "16384x2152"}[run]

    for run in SHORT_RUNS:
        old, new, many = Tile(1, 2, 4, 2, run), Tile(1, 4, 2, 2, run), Tile(4, 4, 2, 2, run)
        short = [result(shape_of(run), m, "tiles", "none", tile, factor=factor)
                 for m in (1, 8) for tile, factor in ((old, 1.0), (new, 0.2))]  # fmt: skip
        for change, loop, factor in [("none", DEFAULT_LOOP, 1), ("loads_first", Loop("group", False, 0), 0.9)]:
            short.append(result(shape_of(run), 32, "loops", change, many, loop=loop, factor=factor))
        short.append(result(shape_of(run), 32, "loops", "grid", many, is_resident=False, factor=0.1))
        text = table_of([*lines, *short * 30])
        has(
            text,
            f"    {{{{.m_tiles = 1, .n_warps = 4, .k_warps = 2, .run = {run}}}, 0, 8}},",
            f"    {{{{.m_tiles = 4, .n_warps = 4, .k_warps = 2, .loads_first = false, .run = {run}}}, 9, 64}},",
        )
        changed = [(a, b) for a, b in zip(before.splitlines(), text.splitlines()) if a != b]
        expect(len(before.splitlines()) == len(text.splitlines()) and len(changed) == 3, f"run {run} changes {changed}")
        expect(changed[0] == ("/// An estimate, not measured.", "/// bench/results/tune_0.jsonl, a device, 2027-01-02."),
               f"the run of the results is not said: {changed}")  # fmt: skip


def test_int8():
    """int8 has its own costs and tiles, whatever 4-bit weights took."""
    tiles = [Int8Tile(1, 4, 2, 2, 2), *DEFAULT_INT8_TILES[1]]
    known = Costs(20_000, 7_000, 900_000)
    lines = [int8_result(shape, m, tile, splits, known=known)
             for shape, m, tile, splits in itertools.product(SHAPES, (1, 4, 8), tiles, (1, 2, 4))]  # fmt: skip
    text = table_of([*device(), *tile_results(), *lines])
    own = costs_of(text, "int8")
    has(own, *(f".{name} = {number(getattr(known, name))}," for name in Costs._fields), "bench/results/tune_0.jsonl")
    expect(costs_of(text) == costs_of(table_of([*device(), *tile_results()])), "int8 changes the costs of 4-bit weights")
    nothing = table_of([*device(), *lines])
    has(costs_of(nothing), "not measured", ".bytes_of_a_start = 24'000,")
    has(costs_of(table_of([*device(), *tile_results()]), "int8"), "not measured", ".bytes_of_a_start = 12'000,")
    better = [int8_result(SHAPES[0], 32, tile, factor=factor)
              for tile, factor in ((DEFAULT_INT8_TILES[4][0], 1), (Int8Tile(4, 8, 1, 2, 1), 0.1))]  # fmt: skip
    text = table_of([*device(), *better]).split("namespace int8_matmul {")[1]
    has(
        text,
        "    {{.m_tiles = 4, .n_warps = 8, .k_warps = 1, .n_tiles = 2, .groups = 1}, 17, 32},",
        "/// bench/results/tune_0.jsonl, a device, 2027-01-02.\ninline constexpr std::array<Choice, 5> choices",
    )
    (found,) = read([*device(), {**better[1], "default": True}])
    few = (found.tile, found.stage, found.splits, found.m, found.is_default, found.loop)
    expect(few == (Int8Tile(4, 8, 1, 2, 1), "tiles", 1, 32, True, None), f"a line of int8 is read as {few}")


def test_writing():
    """Comments are as wide as the sources, and the program writes, checks and reports what it should."""
    ones = " ".join(["one"] * 40)
    text = commented([ones, "two"], "/// ")
    expect(all(line.startswith("/// ") and len(line) <= 120 for line in text.splitlines()), text)
    expect(" ".join(line[4:] for line in text.splitlines()) == f"{ones}; two.", text)
    expect((number(7), number(5_500), number(2_000_000)) == ("7", "5'500", "2'000'000"), "numbers are grouped otherwise")
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        results, table = root / "bench" / "results", root / "kernels" / "host" / "matmul" / "matmul_tuned.hpp"
        results.mkdir(parents=True)
        table.parent.mkdir(parents=True)
        int8 = {**int8_result(SHAPES[0], 1, DEFAULT_INT8_TILES[1][0]), "median": 30.0, "default": True}
        lines = [*device(), *tile_results(), rows_result("4096x4096", 64, "mma", 8.0)]
        few = [{**few_rows_result(1024, 16, FewRowsTile(2, 2, 8), tile_n, splits), "median": time}
               for tile_n, splits, time in ((64, 4, 5.0), (64, 8, 6.0))]  # fmt: skip
        many = {**many_rows_result(1792, 64, ManyRowsTile(32, 2, 2), 64, 8), "median": 7.0}
        lines += [*few, {**few[0], "m": 24}, many]
        slow = {**result(SHAPES[0], 1, "tiles", "none", DEFAULT_TILES[1][0], factor=0.5), "median": 100.0, "default": True}
        fast = {**slow, "median": 50.0, "default": False}
        lines = [line for line in lines if line.get("m") != 1] + [slow, fast, int8]
        write(results, lines)
        run(root)
        expect(table.read_text() == table_of(lines), "what is written is not the table")
        run(root, "--check")
        table.write_text(table.read_text().replace("25'", "26'").replace("choices", "choice"))
        before = table.read_text()
        expect("is not what the results give" in run(root, "--check", fails=True), "--check takes another table")
        expect(table.read_text() == before, "--check writes the table")
        report = run(root, "--report")
        expect(table.read_text() == before, "--report writes the table")
        expect("a device, 4096x4096, m 1: 50.00 us, default 2.00: (1, 2, 4, 2, 64)" in report, report)
        expect("a device, 4096x4096, m 1, int8: 30.00 us, default 1.00: (1, 2, 4, 2, 2), splits 1\n" in report, report)
        expect("a device, 4096x4096, m 64: mma 8.00 us\n" in report, report)
        own = few_rows_config(sm90_plan_of([]), 16, 1024, 4096)
        expect((own.tile, own.tile_n, own.splits) == (FewRowsTile(2, 2, 8), 64, 8), f"the estimates choose {own}")
        has(
            report,
            "a device, 1024x4096, m 16: few rows 5.00 us, by (2, 2, 8), tile_n 64, splits 4; "
            "the plan's launch takes 20.0% longer\n",
            "a device, 1024x4096, m 24: few rows 5.00 us\n",
            "a device, 1792x4096, m 64: wgmma 7.00 us, by (32, 2, 2), tile_n 64, splits 8; "
            "the plan's launch was not measured\n",
            "a device, few rows: the plan's launches take 20.00% longer",
        )
        expect("a device, many rows" not in report, report)
        expect("default not measured" in report, report)
        cases = {line.case for line in read(lines)}
        expect(len(report.splitlines()) == len(cases) + 1, f"a case is reported twice: {report}")
        expect("usage:" in run(root, "--fast", fails=True), "an unknown option is taken")


def run(root, *words, fails=False):
    """What tune_table.py prints, with another root; or, if it should fail, its message."""
    printed = io.StringIO()
    paths = {"ROOT": root, "TABLE": root / "kernels" / "host" / "matmul" / "matmul_tuned.hpp",
             "__file__": str(root / "tune_table.py")}  # fmt: skip
    with unittest.mock.patch.dict(tune_table.__globals__, paths), unittest.mock.patch("sys.argv", ["", *words]):
        try:
            with contextlib.redirect_stdout(printed):
                tune_table()
        except SystemExit as end:
            expect(fails, f"{words} fails: {end}")
            return str(end)
    expect(not fails, f"{words} does not fail")
    return printed.getvalue()


def test_no_results():
    text = table_of()
    expect(text == table_of(list(device())), "results without a time change the table")
    has(text, "/// An estimate, not measured.", "u64 bytes_of_kept_x = 32'000;", "{90, 0, 101'376, true},")
    expect("bench/results/tune_" not in text, "there is no such file")


def main():
    for test in (test_costs, test_tiles, test_loops, test_devices, test_devices_whose_x_was_not_kept, test_many_rows, test_reading,
                 test_short_runs, test_int8, test_sm90_costs, test_sm90_clusters, test_sm90_estimates, test_sm90_weights,
                 test_sm90_reading, test_sm90_choices, test_writing, test_no_results):  # fmt: skip
        test()


if __name__ == "__main__":
    main()
