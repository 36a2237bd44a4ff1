#!/usr/bin/env python3
"""The predictions of bench/kernels/predict/predictions.py where the answer is known.

usage: tests/bench/kernels/predictions_test.py
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[3]
PROGRAM = ROOT / "bench" / "kernels" / "predict" / "predictions.py"
sys.path.insert(0, str(PROGRAM.parent))

import code_tables  # noqa: E402
import kernel_records  # noqa: E402
import limits  # noqa: E402
import measured  # noqa: E402
import predictions  # noqa: E402
import results  # noqa: E402
import tma_limits  # noqa: E402

NAME = "FourBitMatmul<bf16, true, FourBitMatmulTile{1u, 2u, 4u, 2u, 1, true, 0u, 64u}, false>"
RECORD = {"kernel": NAME, "per_unit": 2.0, "blocks": 2, "average_bytes_in_flight": 20_000}
# 264 tiles, one for each block: as much for each multiprocessor.
PLAN = {"operation": "matmul", "shape": "16896x4096", "n": 16896, "k": 4096, "m": 8, "m_tiles": 1, "n_warps": 2,
        "k_warps": 4, "n_tiles": 2, "block_n": 64, "block_k": 512, "max_m": 8, "min_blocks": 2, "tiles": 264,
        "splits": 1, "k_of_item": 4096, "blocks": 264, "turns": 1, "cost": 1, "run": 64, "keeps_x": False}  # fmt: skip


FEW_ROWS = "FourBitMatmulFewRows<bf16, true, FourBitMatmulFewRowsTile{1u, 4u, 4u, 2u}>"
WGMMA = "FourBitMatmulSm90<bf16, true, FourBitMatmulSm90Tile{64u, 2u, 2u}>"
TMA_RECORDS = {FEW_ROWS: {"per_unit": 2.0, "registers": 80}, WGMMA: {"per_unit": 4.0, "registers": 96}}
# 132 tiles, one for each block.
OF_FEW_ROWS = {"kernel": "FourBitMatmulFewRows", "tile": [1, 4, 4, 2], "block_n": 128, "block_k": 256, "max_m": 8,
               "stages": 4, "tile_n": 128, "splits": 1, "k_of_item": 4096, "items": 132, "clusters": 132, "blocks": 132,
               "turns": 1, "seconds": 1e-6}  # fmt: skip
OF_WGMMA = OF_FEW_ROWS | {"kernel": "FourBitMatmulSm90", "tile": [64, 2, 2], "max_m": 64, "stages": 3}

READ = limits.READ["H200"]


def tma_limits_of(tma=OF_FEW_ROWS, plan=PLAN, **changes):
    return tma_limits.TmaLimits(plan | {"tma": tma | changes, "by_tma": True}, TMA_RECORDS)


def limits_of(**changes):
    name = NAME.replace("64u}", f"{changes.get('run', 64)}u}}").replace("false>", f"{changes.get('keeps_x', False)}>".lower())
    name = name.replace("{1u", f"{{{changes.get('m_tiles', 1)}u")
    return limits.LaneLimits(PLAN | changes, {name: RECORD})


class OfTimes(unittest.TestCase):
    def assert_time(self, seconds, expected):
        self.assertAlmostEqual(seconds / expected, 1.0)


class Limit(OfTimes):
    def ends(self, name, **changes):
        return limits_of(**changes).limits("H200")[name]

    def test_of_memory_is_the_weight(self):
        nested = 16896 * 4096 * (0.5 + 1 / 64 + 4 / 16384)
        self.assert_time(self.ends("memory")[0], nested / READ)
        of_32 = 16896 * 4096 * (0.5 + 1 / 32 + 4 / 8192)
        self.assert_time(self.ends("memory", shape="16896x4096b32", run=32)[0], of_32 / READ)

    def test_of_the_l2_cache_is_the_weight_and_x_for_each_tile(self):
        weight, x = limits_of().weight_bytes, 264 * 8 * 4096 * 2
        self.assert_time(self.ends("L2")[0], (weight + x) / 5.5e12)
        self.assert_time(self.ends("L2", m=16)[0], (2 * weight + 2 * x) / 5.5e12)  # 8 rows at a time

    def test_of_bytes_in_flight(self):
        self.assert_time(self.ends("in flight")[0], 16896 * 4096 / 2 / (132 * 20_000) * 700e-9)
        # Half of the blocks, half of the bytes.
        self.assert_time(self.ends("in flight", blocks=132)[0], 16896 * 4096 / 2 / (132 * 10_000) * 700e-9)

    def test_of_weights_that_share_x_is_the_slowest_block(self):
        own = self.ends("in flight", operation="shared-matmul", turns=6)
        self.assert_time(own[0], 6 * 64 * 4096 / 2 / 10_000 * 700e-9)
        least, most = self.ends("instructions", operation="shared-matmul", turns=6)
        self.assert_time(most * limits.CLOCKS[1], 6 * least * limits.CLOCKS[0])

    def test_of_instructions(self):
        # A multiprocessor has 2 tiles of 64 x 4096, and issues 128 instructions of a thread in a clock.
        clocks = 2 * 64 * 4096 * 2.0 / 128
        self.assert_time(self.ends("instructions")[0], clocks / 1.98e9)
        self.assert_time(self.ends("instructions")[1], clocks / 1.755e9)

        of_experts = self.ends("instructions", operation="expert-matmul")
        self.assert_time(of_experts[0], (clocks + 2 * 860) / 1.98e9)  # each tile has a block, which fills its table

    def test_of_tensor_cores_is_twice_as_much_for_runs_of_8(self):
        self.assert_time(self.ends("tensor cores")[0], 2 * 64 * 4096 / 2048 * 12 / 1.98e9)
        self.assert_time(self.ends("tensor cores", run=8)[0], 2 * 64 * 4096 / 2048 * 24 / 1.98e9)

    def test_of_shared_memory_in_clocks(self):
        # table 32, codes 8, shuffles 5, x read 8 and written 4: docs/four-bit-matmul.md
        self.assertEqual(limits_of().shared_total(8), (57, 57))
        self.assertEqual(limits_of(keeps_x=True).shared_total(1), (47, 53))
        self.assertEqual(limits_of(run=16).shared_total(8)[0] - limits_of().shared_total(8)[0], 20 + 4 - 5)
        # With runs of 8 and more than 8 rows, copies of the codes are written and read.
        for rows, m_tiles, copies in (8, 1, 0), (32, 4, 16):
            of_8, of_16 = (limits_of(run=run, m_tiles=m_tiles).shared_total(rows)[0] for run in (8, 16))
            self.assertEqual(of_8 - of_16, 20 + 8 - 4 + copies)


class LimitWithTma(OfTimes):
    WEIGHTS = 128 * 4096  # of each multiprocessor

    def test_of_bytes(self):
        found = tma_limits_of().limits("H200")
        weight = 16896 * 4096 * (0.5 + 1 / 64 + 4 / 16384)
        self.assert_time(found["memory"][0], weight / READ)
        self.assert_time(found["L2"][0], (weight + 132 * 8 * 4096 * 2) / 5.5e12)
        # All stages but one: three of 128 x 256.
        self.assert_time(found["in flight"][0], self.WEIGHTS / (3 * 128 * 256) * 700e-9)

    def test_reads_a_weight_again_for_the_rows_beyond_a_tile(self):
        twice = tma_limits_of(OF_WGMMA, PLAN | {"m": 128}, items=264, turns=2).limits("H200")
        weight = 16896 * 4096 * (0.5 + 1 / 64 + 4 / 16384)
        self.assert_time(twice["memory"][0], weight / READ)
        self.assert_time(twice["L2"][0], (2 * weight + 132 * 128 * 4096 * 2) / 5.5e12)

    def test_of_clocks(self):
        for tma, clocks in [
            # table 32, codes written 8 and read 8, absmax, x read 8 and written 2; 2.0 instructions; a tile of 8 rows
            (OF_FEW_ROWS, {"shared memory": (64, 66), "instructions": (32, 32), "tensor cores": (12, 12)}),
            # table 32, codes 8 and 32, absmax, x 32 and 16: docs/four-bit-matmul.md#why-from-17-rows-on, by four
            (OF_WGMMA, {"shared memory": (126, 128), "instructions": (64, 64), "tensor cores": (64, 64)}),
        ]:
            found = tma_limits_of(tma).limits("H200")
            for name, of_2048 in clocks.items():
                for seconds, end, clock in zip(found[name], of_2048, limits.CLOCKS):
                    self.assert_time(seconds, end * self.WEIGHTS / 2048 / clock)

    def test_of_x_in_shared_memory(self):
        def x(plan, **changes):
            clocks = tma_limits_of(plan=PLAN | plan, **changes).shared_clocks()
            return clocks["x read"], clocks["x written"][0]

        self.assertEqual(x({"m": 1}), ((2, 8), 0.25))
        self.assertEqual(x({"m": 2}), ((8, 8), 0.5))  # rows are copied one by one
        self.assertEqual(x({"m": 12}, max_m=16), ((16, 16), 4))  # or all that a tile has
        self.assertEqual(x({"m": 8}, tile_n=112), ((8 * 128 / 112,) * 2, 256 / 112))  # seven tiles of 16

    def test_is_that_of_the_block_with_the_most_turns(self):
        own, more = (tma_limits_of(turns=turns).limits("H200") for turns in (1, 3))
        for name in ("in flight", "shared memory", "instructions", "tensor cores"):
            self.assert_time(more[name][0], 3 * own[name][0])

    def test_counts_at_most_an_equal_share_of_memory_for_each_block(self):
        # 133 tiles: the second turn of one block.
        own = tma_limits_of(plan=PLAN | {"n": 133 * 128}, items=133, turns=2)
        seconds, why = own.unevenly("H200")
        self.assertEqual(why, "memory (2 turns of 132)")
        self.assert_time(seconds, own.weight_bytes / READ * 2 * 132 / 133 + own.start(limits.CLOCKS[1]))
        self.assertEqual(tma_limits_of(items=100, blocks=100).unevenly("H200")[1], "memory (100 of 132 blocks)")
        # The second time, the weight comes from the L2 cache.
        twice = tma_limits_of(OF_WGMMA, PLAN | {"m": 128}, items=264, turns=2)
        self.assert_time(twice.unevenly("H200")[0] - twice.start(limits.CLOCKS[1]), twice.weight_bytes / READ)
        with unittest.mock.patch.dict(limits.READ, H200=READ / 10):
            self.assertEqual(own.predicted("H200")[1], own.unevenly("H200"))

    def test_counts_the_start_and_the_sums(self):
        own, halves = tma_limits_of(), tma_limits_of(splits=2, k_of_item=2048, clusters=66, items=66, turns=2)
        (low, why), _ = own.predicted("H200")
        self.assertEqual(why, "shared memory")
        self.assert_time(low, own.limits("H200")["shared memory"][0] + 860 / 1.98e9)
        self.assert_time(halves.predicted("H200")[0][0] - low, 0.5e-6)

    def test_needs_the_record_of_the_kernel(self):
        with self.assertRaisesRegex(ValueError, "the record has no kernel FourBitMatmulFewRows"):
            tma_limits_of(tile=[1, 1, 16, 2])

    def test_is_for_the_plans_that_use_it(self):
        tables = predictions.Tables([], TMA_RECORDS | {NAME: RECORD}, {})
        plan = PLAN | {"tma": OF_FEW_ROWS, "by_tma": True}
        self.assertIsInstance(tables.limits_of(plan), tma_limits.TmaLimits)
        self.assertIsInstance(tables.limits_of(plan | {"by_tma": False}), limits.LaneLimits)


class Code(unittest.TestCase):
    LANES = {"kernel": "FourBitMatmul", "min_m": 0, "max_m": 8, "m_tiles": 1, "n_warps": 2, "k_warps": 4, "n_tiles": 2,
             "block_n": 64, "block_k": 512, "run": 64}  # fmt: skip
    OF_LANES = RECORD | {"registers": 119, "bytes_in_flight": 32768, "all_bytes_in_flight": 37888,
                         "average_bytes_in_flight": 24620}  # fmt: skip

    def rows(self, table):
        return [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]

    def test_of_kernels_whose_lanes_load(self):
        kept = NAME.replace("false>", "true>")
        table = code_tables.four_bit([self.LANES], {NAME: self.OF_LANES, kept: self.OF_LANES}, {NAME: RECORD})
        same = ["2.00", "119", "2", "32", "24.0", "37"]
        self.assertEqual(self.rows(table), [["1 to 8", "64 x 512", "kept", "", *same],
                                            ["1 to 8", "64 x 512", "in turn", "2.00", *same]])  # fmt: skip
        runs = self.LANES | {"run": 16, "max_m": 64, "min_m": 9}
        self.assertEqual(code_tables.range_text(runs), "9 and more, runs of 16")

    def test_of_kernels_that_tma_feeds(self):
        few = {"kernel": "FourBitMatmulFewRows", "min_m": 5} | OF_FEW_ROWS
        wgmma = {"kernel": "FourBitMatmulSm90", "registers": 104} | OF_WGMMA
        found = self.rows(code_tables.four_bit([few, wgmma], TMA_RECORDS, {}))
        found = [[cell.strip() for cell in row] for row in found]
        self.assertEqual(found[0][:8], ["few rows, 5 to 8", "128 x 256", "TMA", "", "2.00", "80", "1", "64"])
        self.assertEqual(found[1][:8], ["wgmma, 64 at a time", "128 x 256", "TMA", "", "4.00", "104", "1", "48"])

    def test_of_int8(self):
        kernel = self.LANES | {"kernel": "Int8Matmul", "min_m": 9, "max_m": 16, "m_tiles": 2}
        name = "Int8Matmul<{}, Int8MatmulTile{{2u, 2u, 4u, 2u, 2u, {}u}}>"
        half = self.OF_LANES | {"registers": 100, "blocks": 1, "average_bytes_in_flight": 2048}
        records = {name.format("bf16", size): self.OF_LANES for size in (8, 16)}
        records |= {name.format("f16", size): half for size in (8, 16)}
        old = {name: RECORD | {"per_unit": 3.0} for name in records}
        same = ["3.0, 2.0", "3.0, 2.0", "119, 100", "2, 1", "32", "24.0, 2.0"]
        self.assertEqual(self.rows(code_tables.int8([kernel], records, old)),
                         [["9 to 16", "64 x 512", size, *same] for size in ("16", "8")])  # fmt: skip

    def test_need_a_record(self):
        few = {"kernel": "FourBitMatmulFewRows", "min_m": 5} | OF_FEW_ROWS
        with self.assertRaisesRegex(ValueError, "the record has no kernel FourBitMatmulFewRows"):
            code_tables.four_bit([few], {}, {})

    def test_two_kernels_of_one_name_are_an_error(self):
        with self.assertRaises(ValueError):
            kernel_records.find_record("a.*", {"ab": {}, "ac": {}})


class Prediction(OfTimes):
    def test_is_the_largest_limit_and_a_start(self):
        own = limits_of()
        (low, why), (high, why_high) = own.predicted("H200")
        self.assertEqual((why, why_high), ("L2", "L2"))
        self.assert_time(low, own.limits("H200")["L2"][0] + 2 * 860 / 1.98e9)
        self.assert_time(high, own.limits("H200")["L2"][1] + 2 * 860 / 1.755e9)

    def test_counts_the_sums_of_splits(self):
        halves = limits_of(splits=2, k_of_item=2048)
        self.assert_time(halves.predicted("H200")[0][0] - limits_of().predicted("H200")[0][0], 0.5e-6)

    def test_is_at_most_the_estimate(self):
        high, why = limits_of(cost=READ).predicted("H200")[1]
        self.assertEqual((high, why), (1.0, "estimate (264 of 264 blocks)"))

    def test_of_experts_starts_each_wave_anew_and_has_no_estimate(self):
        own = limits_of(operation="expert-matmul", blocks=1056, cost=READ)
        self.assertIsNone(own.estimate("H200"))
        self.assert_time(own.predicted("H200")[1][0], own.limits("H200")["L2"][1] + 4 * 2 * 860 / 1.755e9)

    def test_needs_the_record_of_the_kernel(self):
        with self.assertRaisesRegex(ValueError, "the record has no kernel FourBitMatmul<"):
            limits.LaneLimits(PLAN, {})


class Page(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        plans = self.folder / "plans"
        # A plan whose kernel has a record.
        plan = PLAN | {"shape": "4096x4096", "n": 4096, "m": 8}
        plans.write_text(f"#!/bin/sh\necho '{json.dumps(plan)}'\necho '{json.dumps(plan | {'m': 1})}'\n")
        plans.chmod(0o755)
        self.page = self.folder / "page.md"
        self.page.write_text("before\n<!-- predictions: four_bit_limits -->\n| old |\n<!-- end -->\nafter\n")

    def run_it(self, *arguments):
        return subprocess.run([PROGRAM, self.folder / "plans", *arguments], capture_output=True, text=True, check=False)

    def test_is_checked_and_written(self):
        done = self.run_it("--check", self.page)
        self.assertEqual(done.returncode, 1)
        self.assertIn("is not what the machine code predicts", done.stderr)
        self.assertEqual(self.run_it("--write", self.page).returncode, 0)
        self.assertRegex(self.page.read_text(), r"^before\n<!-- .*-->\n\| n x k [^#]*\| 4096 x 4096 [^#]*<!-- end -->\nafter\n$")
        self.assertEqual(self.run_it("--check", self.page).returncode, 0)

    def write(self, name, lines):
        (self.folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))

    def test_without_a_table_is_refused(self):
        self.page.write_text("nothing\n")
        self.assertIn("has no table of predictions", self.run_it("--check", self.page).stderr)

    def test_has_what_was_measured(self):
        lines = [{"kind": "device", "gpu": "NVIDIA H200"},
                 {"name": "matmul/bf16/nf4-nested/4096x4096/m8/nibble", "median": 3.25},
                 {"name": "many-rows/4096x4096/m96/wgmma96/splits4", "median": 9.0},
                 {"name": "many-rows/4096x4096/m96/wgmma128/splits1", "median": 8.0},
                 {"name": "quantize/bf16/nf4-nested/4096x4096/nibble", "error": "wrong"},
                 {"name": "errors/4096x4096/m1", "rms_ratio": 0.5},
                 {"name": "read/kernel", "median": 2.0, "gb_s": 3000}]  # fmt: skip
        self.write("check_h200.jsonl", lines)
        # What bench_tune reads or multiplies with variants is not of the speed table.
        self.write("tune_h200.jsonl", [lines[0], lines[1] | {"median": 1.0}, lines[-1] | {"median": 1.0, "gb_s": 6000}])
        found = measured.measured_lines(self.folder)
        self.assertEqual(found["H200", "many-rows/4096x4096/m96/wgmma"]["median"], 8.0)
        self.assertEqual(found["H200", "errors/4096x4096/m1"]["rms_ratio"], 0.5)
        self.assertNotIn(("H200", "quantize/bf16/nf4-nested/4096x4096/nibble"), found)
        self.assertEqual(measured.read_rates(found), {"H200": 3e12})
        tables = predictions.Tables([], {}, found)
        name = predictions.measured_name(PLAN | {"shape": "4096x4096"})
        self.assertEqual(tables.measured_text("H200", name), "3.2")
        self.assertEqual(tables.measured_text("H100", name), "not measured")

    def test_has_the_speed_tables_time_where_the_kernels_were_not_compared(self):
        tma = OF_WGMMA | {"items": 32, "splits": 4, "seconds": 1.5e-6}
        plan = PLAN | {"shape": "4096x4096", "n": 4096, "m": 96, "by_library": False, "tma": tma}
        table = {("H200", "matmul/bf16/nf4-nested/4096x4096/m96/nibble"): {"median": 7.5}}

        def cells(measured, **changes):
            text = predictions.Tables([plan | changes], TMA_RECORDS | {NAME: RECORD}, measured).many_rows()
            row = text.splitlines()[2].strip("| ").split(" | ")
            self.assertEqual((row[2], row[-3]), ("64 x 128, 32 x 4", "1.5"))
            return [row[-4], *row[-2:]]

        self.assertEqual(cells(table, by_tma=True), ["wgmma", "7.5", "not measured"])
        self.assertEqual(cells(table, by_tma=False), ["mma.sync", "not measured", "7.5"])
        compared = {("H200", "many-rows/4096x4096/m96/wgmma"): {"median": 8.0}}
        self.assertEqual(cells(table | compared, by_tma=True), ["wgmma", "8.0", "not measured"])

    def test_compares_as_the_goals_count(self):
        line = {"median": 20.0, "share_of_read": 0.5, "times_m1": 1.25, "faster_than": {"cublaslt": 1.5}}

        def cell(line, **changes):
            plan = PLAN | {"shape": "4096x4096"} | changes
            tables = predictions.Tables([], {}, {("H100", predictions.measured_name(plan)): line})
            return tables.measured_and_compared("H100", plan)

        self.assertEqual(cell(line, m=1), "20.0: 50 %")
        self.assertEqual(cell(line, m=4, tokens=64), "20.0: 50 %")
        self.assertEqual(cell(line, m=16), "20.0: 1.25 x m = 1")
        self.assertEqual(cell(line, m=32), "20.0: 1.50 x cuBLASLt")
        for m in (1, 16, 32):
            self.assertEqual(cell({"median": 20.0}, m=m), "20.0")
        self.assertEqual(predictions.Tables([], {}, {}).measured_and_compared("H100", PLAN), "not measured")

    def test_knows_the_lines_of_the_speed_table(self):
        def name(operation, shape, **more):
            return predictions.measured_name({"operation": operation, "shape": shape, "m": 1} | more)

        self.assertEqual(name("int8-matmul", "16384x4304"), "matmul/bf16/int8/16384x4304/m1/nibble")
        self.assertEqual(name("shared-matmul", "4096+1024+1024x4096"),
                         "shared-matmul/bf16/nf4-nested/4096+1024+1024x4096/m1/nibble")  # fmt: skip
        self.assertEqual(name("expert-matmul", "128x1536x2048", tokens=8),
                         "expert-matmul/bf16/nf4-nested/128x1536x2048/tokens8/nibble")  # fmt: skip


class Results(unittest.TestCase):
    def row(self, what, lines):
        (found,) = [line for line in results.table(lines).splitlines() if line.startswith(f"| {what}")]
        return found.removesuffix(" |").split(" | ")[1:]

    def test_are_not_measured_without_lines(self):
        texts = results.table({}).splitlines()
        self.assertEqual(texts[0], "| | H100 | H200 |")
        for line in texts[2:]:
            self.assertTrue(line.endswith(" | not measured | not measured |"), line)

    def test_say_which_figure_is_missing(self):
        lines = {("H200", "matmul/bf16/nf4-nested/14336x4096/m1/nibble"): {"median": 2.0, "share_of_read": 0.804}}
        self.assertEqual(self.row("product, m = 1, 4096 x 4096; 14336 x 4096; 28672 x 8192: share", lines),
                         ["not measured", "–; 80 %; –"])  # fmt: skip

    def test_are_of_the_fastest_copy_and_the_faster_bitsandbytes(self):
        lines = {("H100", "copy/kernel"): {"gb_s": 3000.4}, ("H100", "copy/cudaMemcpyAsync"): {"gb_s": 2500},
                 ("H100", "read/kernel"): {"gb_s": 3100},
                 ("H100", "matmul/bf16/nf4-nested/4096x4096/m8/nibble"):
                 {"times_m1": 1.1,
                  "faster_than": {"cublaslt": 1.7, "bitsandbytes-fused": 3, "bitsandbytes-dequantized": 2}},
                 ("H100", "linear4bit/forward/28672x8192/m1024/nibble"):
                 {"faster_than": {"bitsandbytes": 1.5, "torch-bf16": 0.9}}}  # fmt: skip
        self.assertEqual(self.row("copy; read", lines)[0], "3000; 3100")
        of_m = "product, 4096 x 4096, m = "
        self.assertEqual(self.row(of_m + "8; 16; 32; 64: times", lines)[0], "1.10; –; –; –")
        self.assertEqual(self.row(of_m + "1; 8; 16; 32; 64; 128; 256: faster than cuBLASLt", lines)[0],
                         "–; 1.70; –; –; –; –; –")  # fmt: skip
        self.assertEqual(self.row(of_m + "8; 16; 32; 64; 128; 256: faster than bitsandbytes", lines)[0],
                         "2.00; –; –; –; –; –")  # fmt: skip
        of_linear = "Linear4bit, 28672 x 8192, m = 1; 64; 1024; 4096, forward: faster than "
        self.assertEqual(self.row(of_linear + "bitsandbytes'", lines)[0], "–; –; 1.50; –")
        self.assertEqual(self.row(of_linear + "a bf16 weight", lines)[0], "–; –; 0.90; –")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "--quiet"])
