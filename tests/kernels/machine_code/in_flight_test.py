import unittest

from in_flight import in_flight, prefetches
from recording import code, loop, recorded
from way import Way, hot_way


class BytesInFlight(unittest.TestCase):
    def check(self, way, asked, of_all):
        found = in_flight(way, r"LDG\.E\.EF")
        self.assertEqual((found.asked, found.all), (asked, of_all))

    def test_until_the_wait(self):
        self.check(loop("LDG.E.EF.64 R1 !5", "LDG.E.CONSTANT R3 !5", "MOV ?5", "LDG.E.EF.128 R4 !4", "MOV ?4"), 16, 16)

    def test_the_average(self):
        # In flight at the first three of the four instructions, and in a loop at all that follow the second wait.
        for body, expected in [
            (["LDG.E.EF.64 R1 !5", "MOV", "MOV", "MOV ?5"], 8 * 3 / 4),
            (["LDG.E.EF.64 R1 !5", "LDG.E.CONSTANT R3 !4", "MOV ?5", "MOV ?4"], 8 * 2 / 4),
            (["MOV ?5", "LDG.E.EF.64 R1 !5", "LDG.E.EF.64 R2 !4", "MOV ?4"], (0 + 8 + 16 + 8) / 4),
            (["MOV", "MOV ?5", "LDG.E.EF.128 R1 !5", "MOV"], 16 * 3 / 4),
        ]:
            self.assertEqual(in_flight(loop(*body), r"LDG\.E\.EF").average_asked, expected)

    def test_other_counters_stay(self):
        self.check(loop("LDG.E.EF.64 R1 !5", "LDG.E.CONSTANT R3 !4", "MOV ?4", "MOV ?5"), 8, 12)

    def test_an_explicit_wait_for_a_counter(self):
        self.check(loop("LDG.E.EF.64 R1 !5", "DEPBAR.LE SB5, 0x0", "LDG.E.EF R2 !4", "MOV ?4"), 8, 8)

    def test_around_the_loop(self):
        # The wait is at the beginning, so the load of one pass is in flight in the next.
        self.check(loop("LDG.E.EF R1 !4", "MOV ?5", "LDG.E.EF.64 R2 !5", "MOV ?4"), 12, 12)

    def test_a_kernel_without_a_loop_is_gone_through_once(self):
        self.check(Way(1, code("LDG.E.EF R1 !4", "MOV ?5", "MOV ?4", "LDG.E.EF.64 R2 !5"), is_loop=False), 8, 8)

    def test_groups_of_copies(self):
        step = "LDGSTS.E.BYPASS.128 [R1]", "LDGDEPBAR !0", "DEPBAR.LE SB0, {}", "HMMA"
        for left, expected in [("0x0", 16), ("0x1", 32), ("0x3", 64)]:
            self.check(loop(*(text.format(left) for text in step)), 0, expected)

    def test_copies_of_codes_stay_while_those_of_tokens_are_awaited(self):
        # Two steps of codes, if the newest group is left and is theirs; else one.
        tokens, codes, end = "LDGSTS.E.BYPASS.128 [R1]", "LDGSTS.E [R2]", "LDGDEPBAR !0"
        for left, expected in [("0x1", 8), ("0x0", 4)]:
            way = loop(f"DEPBAR.LE SB0, {left}", "BAR.SYNC", tokens, end, codes, end, "HMMA")
            self.assertEqual(in_flight(way, "LDGSTS.E$").asked, expected)

    def test_copies_without_a_wait_for_groups_count_once(self):
        self.check(loop("LDGSTS.E.BYPASS.128 [R1]", "LDGSTS.E.64 [R2]", "ARRIVES.LDGSTSBAR.64 [UR4]"), 0, 24)

    def test_copies_can_be_what_is_asked_about(self):
        self.assertEqual(in_flight(loop("LDGSTS.E.128 [R1]", "LDG.E R1 !5", "MOV ?5"), "LDGSTS").asked, 16)

    def test_prefetches_are_apart(self):
        way = loop("CCTL.E.PF2 [R2]", "CCTL.E.PML2 [R2+0x40]", "UBLKPF.L2 [UR4], UR8", "CCTL.IVALL")
        self.check(way, 0, 0)
        self.assertEqual(prefetches(way), 3)

    def test_recorded_loops(self):
        # 8 loads of 8 bytes; with absmax (2 of 1 byte, 2 of 4) and the copies of tokens (2 or 4 of 16 bytes).
        for name, of_all in [("decode_m8", 106), ("decode_m32", 138)]:
            self.check(hot_way(recorded(name), ["HMMA", "LDGSTS", "LDG"]), 64, of_all)
