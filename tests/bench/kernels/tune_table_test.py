#!/usr/bin/env python3
"""What bench/kernels/tune/tune_table.py makes of results whose answer is known: times by the plan's own estimate.

usage: tests/bench/kernels/tune_table_test.py
"""

import itertools
import json
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "bench" / "kernels" / "tune"))

from tune_plan import DEFAULT_LOOP, DEFAULT_TILES, Costs, min_blocks, plan_of, rounded  # noqa: E402
from tune_results import Loop, Tile, read_results  # noqa: E402
from tune_table import number, text_of  # noqa: E402

BYTES_PER_US = 3_000_000.0
KNOWN = Costs(40_000, 9_000, 1_200_000, 0)
SHAPES, ROWS = ("4096x4096", "14336x4096", "28672x8192"), (1, 4, 8, 16, 32, 64)
LOOP = 1.1  # how much slower than plain reads the loop reads


def expect(condition, text):
    if not condition:
        raise SystemExit(f"error: bench/kernels/tune/tune_table.py: {text}")


def time_of(n, k, m, tile, splits, keeps_x, known=KNOWN):
    slots = 132 * min_blocks(tile)
    block_n, block_k = 16 * tile.n_tiles * tile.n_warps, 64 * (4 // tile.n_tiles) * tile.k_warps
    turns = -(-(-(-n // block_n) * splits) // slots)
    k_of_a_split = -(-(-(-k // block_k)) // splits) * block_k
    of_a_tile = block_n * k_of_a_split * 33 // 64 + (0 if keeps_x else m * k_of_a_split)
    cost = slots * (turns * (of_a_tile + known.bytes_of_an_end) + known.bytes_of_a_start)
    cost += splits * m * n * 4 + known.bytes_of_adding if splits > 1 else 0
    return LOOP * cost / BYTES_PER_US


def result(shape, m, stage, change, tile, splits=1, loop=DEFAULT_LOOP, keeps_x=False, is_resident=True,
           factor=1.0, known=KNOWN):  # fmt: skip
    n, k = map(int, shape.split("x"))
    variant = {**tile._asdict(), **loop._asdict(), "keeps_x": keeps_x, "splits": splits, "overlaps": False,
               "is_resident": is_resident}  # fmt: skip
    return {"step": "variants", "name": "any", "shape": shape, "m": m, "stage": stage, "change": change,
            "default": False, "variant": variant,
            "median": factor * time_of(n, k, m, tile, splits, keeps_x, known)}  # fmt: skip


def device(multiprocessors=132, capability=90):
    yield {"kind": "run", "date": "later"}
    yield {"step": "table", "kind": "device", "gpu": "another", "capability": 1, "multiprocessors": 1, "date": "never"}
    yield {"step": "variants", "kind": "device", "gpu": "a device", "capability": capability,
           "multiprocessors": multiprocessors, "date": "2027-01-02"}  # fmt: skip
    yield {"step": "variants", "name": "read/kernel", "gb_s": BYTES_PER_US / 1e3}


def table_of(*files):
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for i, lines in enumerate(files):
            paths.append(pathlib.Path(folder) / f"tune_{i}.jsonl")
            paths[-1].write_text("".join(json.dumps(line) + "\n" for line in lines))
        return text_of(plan_of(read_results(paths)))


def has(text, *parts):
    for part in parts:
        expect(part in text, f"{part!r} is not in\n{text}")


def tile_results(known=KNOWN):
    """All tiles of one m_tiles."""
    tiles = [Tile(1, 4, 2, 2), *DEFAULT_TILES[1]]
    for shape, m, tile, splits in itertools.product(SHAPES, (1, 4, 8), tiles, (1, 2, 4)):
        if m <= 4 or tile.n_tiles == 2:
            yield result(shape, m, "tiles", "none", tile, splits, known=known)


def test_costs():
    text = table_of([*device(), *tile_results()])
    for name in Costs._fields[:3]:
        has(text, f".{name} = {number(rounded(getattr(KNOWN, name)))},")
    has(text, "bench/results/tune_0.jsonl, a device, 2027-01-02.")
    slower = table_of([*device(), *({**line, "median": 2 * line["median"]} for line in tile_results())])
    expect(slower.split("costs{")[1] == text.split("costs{")[1], "costs depend on how fast the loop is")
    changed = result(SHAPES[0], 1, "loops", "none", DEFAULT_TILES[1][0], factor=3)
    others = table_of([*device(), *tile_results(), *[changed] * 30])
    expect(others.split("costs{")[1].split("}")[0] == text.split("costs{")[1].split("}")[0], "costs depend on changes")
    # Splits that cost less than nothing are a mistake of the measurement.
    cheap = table_of([*device(), *tile_results(KNOWN._replace(bytes_of_adding=-500_000))])
    has(cheap, ".bytes_of_adding = 0,", "bench/results/tune_0.jsonl")
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
    rows = [line.strip() for line in text.split("devices{{")[1].splitlines() if line.strip().startswith("{")]
    wanted = ["{90, 132, 32'768, false},", "{90, 114, 0, true},", "{80, 108, 101'376, true},", "{90, 0, 101'376, true},",
              "{0, 0, 0, true},"]  # fmt: skip
    expect(rows == wanted, f"the rows of devices are {rows}")
    has(
        text,
        "std::array<DeviceTuning, 5>",
        "    // bench/results/tune_1.jsonl, a device, 2027-01-02.",
        ".bytes_of_kept_x = 0,",
    )


def test_many_rows():
    def lines(wgmma):
        for shape, (m, ratio) in itertools.product(SHAPES, wgmma.items()):
            for kernel, splits, time in (("mma", 1, 10), ("wgmma", 1, 10 * ratio), ("wgmma", 2, 20)):
                yield {"step": "many-rows", "shape": shape, "m": m, "kernel": kernel, "splits": splits,
                       "default": False, "median": time}  # fmt: skip

    for wgmma, expected in [({33: 1.2, 64: 0.9, 128: 0.7}, 64), ({33: 0.9, 64: 1.1, 128: 0.7}, 128),
                            ({33: 0.9, 64: 0.8}, 33), ({64: 1.2, 128: 1.1}, 129)]:  # fmt: skip
        text = table_of([*device(), *lines(wgmma)])
        has(
            text,
            f"/// bench/results/tune_0.jsonl, a device, 2027-01-02.\ninline constexpr u64 min_m_of_sm90 = {expected};",
        )
    has(
        table_of([*device(), *itertools.islice(lines({64: 0.5}), 1)]),
        "not measured.\ninline constexpr u64 min_m_of_sm90 = 65;",
    )


def test_no_results():
    text = table_of()
    expect(text == table_of(list(device())), "results without a time change the table")
    has(text, "/// An estimate, not measured.", ".bytes_of_kept_x = 32'000,", "{90, 0, 101'376, true},")
    expect("bench/results/tune_" not in text, "there is no such file")


def main():
    for test in (test_costs, test_tiles, test_loops, test_devices, test_many_rows, test_no_results):
        test()


if __name__ == "__main__":
    main()
