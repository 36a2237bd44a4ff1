import unittest
from dataclasses import replace

from by_hand import differences
from recording import code, recorded
from way import hot_way

# Two loops, one in the other, with a rare way, and code for diverged warps at the end.
NESTED = code(
    "S2R R0",
    "LDG.E.EF R1",  # 1: the outer loop
    "@P0 BRA 0x50",
    "LDG.E.U8 R2",
    "FMUL R2",
    "BRA.DIV UR4, 0xd0",  # 5: where the way around the two before joins
    "STG.E.128 R1",
    "@!P1 BRA 0xa0",
    "STG.E.U16 R1",  # 8: the inner loop
    "@P2 BRA 0x80",
    "@P3 BRA 0x10",  # 10
    "NOP",
    "EXIT",
    "WARPSYNC R3",  # 13: diverged
    "BRA 0x60",
)


class HotWay(unittest.TestCase):
    def test_most_markers_then_fewest_instructions(self):
        for markers, region, expected in [
            (["STG.E.128"], "loop", (1, 6)),
            (["STG.E.128", "LDG.E.U8"], "loop", (2, 8)),
            (["STG.E.U16"], "loop", (1, 2)),
            (["STG.E.128", "LDG.E.U8"], "kernel", (2, 10)),
        ]:
            way = hot_way(NESTED, markers, region)
            self.assertEqual((way.markers, way.issued), expected, (markers, region))

    def test_without_markers_there_is_none(self):
        self.assertIsNone(hot_way(NESTED, ["HMMA"]))

    def test_the_inner_loop_is_the_hot_one_if_its_work_is_all(self):
        persistent = code(
            "LDG R1",  # 0: for each tile, its first loads
            "LDG R2",
            "LDG R1",  # 2: the steps of a tile
            "HMMA",
            "@P0 BRA 0x20",
            "STG R1",
            "@P1 BRA 0x0",
            "EXIT",
        )
        self.assertEqual(hot_way(persistent, ["LDG", "HMMA"], "loop", "HMMA").issued, 3)
        self.assertEqual(hot_way(persistent, ["LDG", "HMMA"], "loop").issued, 7)

    def test_inner_loops_have_none_inside(self):
        unrolled = code(
            "LDS R1",  # 0: the rare loop, and what is left over of it
            "LDS R2",  # 1: two passes
            "LDS R2",
            "HMMA",
            "HMMA",
            "@P0 BRA 0x10",
            "HMMA",  # 6: one pass
            "@P1 BRA 0x0",
            "LDS R3",  # 8: the hot loop
            "HMMA",
            "HMMA",
            "@P2 BRA 0x80",
            "EXIT",
        )
        self.assertEqual(hot_way(unrolled, ["HMMA"], "loop", "HMMA").markers, 3)
        way = hot_way(unrolled, ["HMMA"], "inner loop", "HMMA")
        self.assertTrue(way.is_loop)
        self.assertEqual([one.address >> 4 for one in way.instructions], [8, 9, 10, 11])
        # The loops may begin or end together.
        for texts in (
            ["HMMA", "@P0 BRA 0x0", "HMMA", "@P1 BRA 0x0", "EXIT"],
            ["HMMA", "HMMA", "@P0 BRA 0x10", "@P1 BRA 0x0", "EXIT"],
        ):
            self.assertEqual(hot_way(code(*texts), ["HMMA"], "inner loop").markers, 1)

    def test_code_of_diverged_warps_does_not_count(self):
        diverged = [replace(one, opcode="LDG.E.U16") if one.has("WARPSYNC") else one for one in NESTED]
        way = hot_way(diverged, ["STG.E.128", "LDG.E.U16"])
        self.assertEqual((way.markers, way.issued), (1, 6))

    def test_instructions_are_in_order(self):
        way = hot_way(NESTED, ["STG.E.128", "LDG.E.U8"])
        self.assertEqual([one.address >> 4 for one in way.instructions], [1, 2, 3, 4, 5, 6, 7, 10])

    def test_a_recorded_loop_runs_all_its_products(self):
        way = hot_way(recorded("decode_m32"), ["HMMA", "LDGSTS", "LDG"])
        self.assertEqual((way.count("HMMA"), way.count(r"LDGSTS"), way.count(r"LDG\.E\.EF\.64")), (64, 4, 8))


class ByHand(unittest.TestCase):
    def test_numbers_of_each_opcode(self):
        for kernel, by_hand, expected in [
            (NESTED, list(reversed(NESTED)), ""),
            (NESTED, NESTED[1:], "S2R 1, by hand 0"),
            (NESTED, [], "15 instructions, by hand 0"),
            ([], [], "0 instructions, by hand 0"),
        ]:
            self.assertEqual(differences(kernel, by_hand), expected)
