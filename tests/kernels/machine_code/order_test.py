import unittest

from order import behind, waits_too_early
from recording import loop, recorded
from way import hot_way

MARKERS = ["HMMA", "LDGSTS", "LDG"]


def late(way, barriers=("BAR",)):
    return [one.address for one in behind(way, r"LDG\.E\.EF", barriers, "HMMA")]


class LoadsAndBarriers(unittest.TestCase):
    def test_todays_decode_loops_ask_for_codes_after_the_barrier(self):
        for name in ("decode_m8", "decode_m32"):
            self.assertEqual(len(late(hot_way(recorded(name), MARKERS))), 8, name)

    def test_todays_decode_loop_for_more_rows_waits_behind_the_copies_of_tokens(self):
        self.assertEqual(len(late(hot_way(recorded("decode_m32"), MARKERS), ["LDGSTS"])), 8)
        self.assertEqual(len(late(hot_way(recorded("decode_m8"), MARKERS), ["LDGSTS"])), 0)

    def test_loads_before_the_barrier_pass(self):
        self.assertEqual(late(loop("MOV ?5", "LDG.E.EF R1 !5", "BAR.SYNC", "HMMA", "HMMA", "BRA 0x0")), [])

    def test_a_loop_has_no_first_instruction(self):
        rotations = ["LDG.E.EF R1 !5", "HMMA", "MOV ?5", "BAR.SYNC"], ["BAR.SYNC", "LDG.E.EF R1 !5", "HMMA", "MOV ?5"]
        for texts in rotations:
            self.assertEqual(len(late(loop(*texts))), 1, texts)
        self.assertEqual(late(loop("MOV ?5", "MOV", "LDG.E.EF R1", "HMMA", "BAR.SYNC")), [0x20])
        for texts in ["BAR.SYNC", "HMMA", "LDG.E.EF R1"], ["LDG.E.EF R1", "BAR.SYNC", "HMMA"]:
            self.assertEqual(late(loop(*texts)), [], texts)

    def test_one_late_load_of_two_is_found(self):
        self.assertEqual(late(loop("LDG.E.EF R1", "BAR.SYNC", "LDG.E.EF R2", "HMMA")), [0x20])

    def test_other_loads_and_barriers_are_not_meant(self):
        self.assertEqual(late(loop("BAR.SYNC", "LDG.E.CONSTANT R1", "HMMA")), [])
        self.assertEqual(late(loop("WARPSYNC", "LDG.E.EF R1", "HMMA")), [])
        self.assertEqual(late(loop("WARPSYNC", "LDG.E.EF R1", "HMMA"), ["BAR", "WARPSYNC"]), [0x10])


class LoadsAhead(unittest.TestCase):
    def check(self, expected, *texts):
        for turn in range(len(texts)):  # a loop has no first instruction
            turned = texts[turn:] + texts[:turn]
            self.assertEqual(waits_too_early(loop(*turned), "LDG", "HMMA"), expected, turned)

    def test_load_work_wait(self):
        self.check(False, "MOV ?5", "LDG R1 !5", "LDG R2 !5", "HMMA", "HMMA")
        self.check(False, "MOV ?5", "HMMA", "LDG R1 !5", "HMMA")

    def test_a_wait_right_after_the_load(self):
        self.check(True, "LDG R1 !5", "MOV ?5", "HMMA")
        self.check(True, "LDG R1 !5", "HMMA ?5")

    def test_two_waits_for_one_counter(self):
        self.check(True, "MOV ?5", "LDG R1 !5", "HMMA", "MOV ?5", "LDG R2 !5", "HMMA")

    def test_each_counter_is_by_itself(self):
        self.check(False, "MOV ?5", "LDG R1 !5", "HMMA", "MOV ?4", "LDG R2 !4", "HMMA")
        self.check(True, "MOV ?5", "LDG R1 !5", "HMMA", "LDG R2 !4", "MOV ?4")

    def test_a_loop_without_such_loads(self):
        self.check(True, "HMMA")

    def test_todays_decode_loops_pass(self):
        for name in ("decode_m8", "decode_m32"):
            self.assertFalse(waits_too_early(hot_way(recorded(name), MARKERS), r"LDG\.E\.EF", "HMMA"))
