import unittest

import budgets
from budgets import Kernel, check, form_faults
from compilation import Compiled
from recording import code, recorded
from resources import Resources

DECODE = {
    "kernel": "Decode<(?P<m_tiles>.)u>", "because": "a test",
    "markers": ["HMMA", "LDGSTS", "LDG"], "ahead": r"LDG\.E\.EF",
    "loads": {"opcode": r"LDG\.E\.EF", "weights_per_byte": 2},
    "mma": {"opcode": "HMMA", "weights": "a", "times": "m_tiles"}, "dynamic_shared_bytes": 101376,
    "unit": "weight", "budget": 3, "at_bandwidth": 3.6,
}  # fmt: skip


def kernel(instructions, name="Decode<1u>", spilled=0, barriers=1, architecture="sm_90a", **resources):
    taken = Resources(**{"registers": 123, "stack": 0, "local": 0, "shared": 0, "threads": 256} | resources)
    return Kernel(name, architecture, instructions, taken, Compiled(spilled, barriers))


class Checks(unittest.TestCase):
    def faults(self, of, expected, **changed):
        """Expects as many faults as there are texts, each with its text."""
        _, found = check(of, DECODE | changed)
        self.assertEqual(len(found), len(expected), found)
        for fault, text in zip(found, expected):
            self.assertIn(text, fault)

    def test_recorded_loops_pass(self):
        self.faults(kernel(recorded("decode_m8")), [])
        self.faults(kernel(recorded("decode_m32"), "Decode<4u>"), [])

    def test_half_of_the_products_cut_out(self):
        for name, tiles, expected in [
            ("decode_m8", 1, "loads 32768 weights and multiplies 16384, must multiply 32768"),
            ("decode_m32", 4, "loads 32768 weights and multiplies 65536, must multiply 131072 (each 4 times)"),
        ]:
            products = [one for one in recorded(name) if one.has("HMMA")]
            half = [one for one in recorded(name) if one not in products[::2]]
            self.faults(kernel(half, f"Decode<{tiles}u>"), [expected])

    def test_half_of_the_loads_cut_out(self):
        loads = [one for one in recorded("decode_m8") if one.has("LDG.E.EF")]
        self.faults(kernel([one for one in recorded("decode_m8") if one not in loads[::2]]), ["loads 16384 weights"])

    def test_no_loads_at_all(self):
        self.faults(kernel(recorded("decode_m8")), ["the work is not known"],
                    loads={"opcode": "LDG.X", "weights_per_byte": 2})  # fmt: skip

    def test_the_units_follow_from_the_loads(self):
        line, _ = check(kernel(recorded("decode_m8")), DECODE)
        self.assertEqual((line["units"], line["on_the_way"]), (128, 41))

    def test_budget(self):
        self.faults(kernel(recorded("decode_m8")), ["0.32 instructions per weight"], budget=0.3)

    def test_loads_before_the_barrier(self):
        expected = "8 of 8 loads of the next step come after one of BAR, the first at 0x19e0"
        self.faults(kernel(recorded("decode_m8")), [expected], loads_before=["BAR"])

    def test_loads_ahead(self):
        body = "LDG.E.EF.64 R0 !5", "HMMA.16816 ?5", "BRA 0x0", "EXIT"
        self.faults(kernel(code(*body)), ["loads 4096 weights and multiplies 2048", "waits for"])
        self.faults(kernel(code(*body)), ["loads 4096", "waits for"], ahead={"sm_90a": r"LDG\.E\.EF"})
        self.faults(kernel(code(*body)), ["loads 4096"], ahead={"sm_80": r"LDG\.E\.EF"})

    def test_bytes_in_flight(self):
        line, _ = check(kernel(recorded("decode_m8")), DECODE)
        self.assertEqual((line["blocks"], line["bytes_in_flight"], line["all_bytes_in_flight"]), (2, 32768, 54272))
        self.faults(kernel(recorded("decode_m8")), [], min_bytes_in_flight=32768)
        self.faults(kernel(recorded("decode_m8")), ["32768 bytes in flight"], min_bytes_in_flight=32769)
        self.faults(kernel(recorded("decode_m8")), ["32768 bytes"], min_bytes_in_flight={"sm_90a": 40000})
        self.faults(kernel(recorded("decode_m8")), [], min_bytes_in_flight={"sm_80": 40000})
        self.faults(kernel(recorded("decode_m8"), registers=190), ["16384 bytes"], min_bytes_in_flight=24576)

    def test_average_bytes_in_flight(self):
        # 8 bytes at two of four instructions, for 256 threads of 2 blocks.
        body = "LDG.E.EF.64 R0 !5", "HMMA.16816", "HMMA.16816 ?5", "BRA 0x0", "EXIT"
        line, _ = check(kernel(code(*body)), DECODE)
        self.assertEqual((line["bytes_in_flight"], line["average_bytes_in_flight"]), (4096, 2048))
        self.faults(kernel(code(*body)), [], min_average_bytes_in_flight=2048)
        self.faults(kernel(code(*body)), ["2048 bytes in flight on a multiprocessor on average, must be at least 2049"],
                    min_average_bytes_in_flight=2049)  # fmt: skip
        self.faults(kernel(code(*body)), ["2048 bytes"], min_average_bytes_in_flight={"sm_90a": 2049})
        self.faults(kernel(code(*body)), [], min_average_bytes_in_flight={"sm_80": 2049})

    def test_a_block_that_fits_nowhere(self):
        self.faults(kernel(recorded("decode_m8")), ["no block fits"], dynamic_shared_bytes=228 << 10)

    def test_local_memory(self):
        self.faults(kernel(recorded("decode_m8"), stack=8), ["8 stack_bytes, may have 0"])
        self.faults(kernel(recorded("decode_m8"), local=8), ["8 stack_bytes, may have 0"])
        self.faults(kernel(recorded("decode_m8"), spilled=4), ["4 spilled_bytes, may have 0"])
        self.faults(kernel(recorded("decode_m8"), stack=8, spilled=4), [], stack_bytes=8, spilled_bytes=4)

    def test_barriers(self):
        self.faults(kernel(recorded("decode_m8"), barriers=16), [])  # of each of two blocks
        six = {"registers": 80, "threads": 128}
        fault = "takes 16 of 64 barriers, which limits a multiprocessor to 4 blocks, not 6"
        for entry in ({"budget": 9}, {"architectures": ["sm_80"]}):
            entry["dynamic_shared_bytes"] = 0
            self.faults(kernel(recorded("decode_m8"), barriers=16, **six), [fault], **entry)
            self.faults(kernel(recorded("decode_m8"), barriers=10, **six), [], **entry)

    def test_no_launch_bound(self):
        self.faults(kernel(recorded("decode_m8"), threads=None), ["no launch bound"])

    def test_stores(self):
        body = "LDG.E.EF R0 !5", "STG.E.128 R0 ?5", "BRA 0x0", "EXIT"
        entry = {key: value for key, value in DECODE.items() if key not in ("mma", "ahead")}
        fault = "loads 2048 weights and stores 4096 bytes, must store 4 for each"
        for bytes_per_weight, expected in [(2, []), (4, [fault])]:
            stores = {"opcode": r"STG\.E\.128", "bytes_per_weight": bytes_per_weight}
            self.assertEqual(check(kernel(code(*body)), entry | {"stores": stores})[1], expected)

    def test_bulk_copies_of_one_warp_and_products_of_two_warpgroups(self):
        # 384 threads, of which 256 multiply. A copy of 16 KB brings 32768 weights; 4 of wgmma's 64 x 16 for each group.
        products = ["HGMMA.64x64x16.F32.BF16"] * 16
        body = ["UBLKCP.S.G [UR10], [UR4], UR9"] + products + ["BRA 0x0", "EXIT"]
        entry = DECODE | {
            "markers": ["HGMMA", "UBLKCP"],
            "loads": {"opcode": "UBLKCP", "weights_per_byte": 2, "bulk_bytes": 16384, "bulk_ahead": 3},
            "mma": {"opcode": "HGMMA", "weights": "a", "threads": 256},
        }
        del entry["ahead"]
        line, faults = check(kernel(code(*body), threads=384, registers=168), entry)
        self.assertEqual((faults, line["blocks"], line["bytes_in_flight"]), ([], 1, 3 * 16384))
        self.assertNotIn("average_bytes_in_flight", line)
        self.assertEqual(form_faults(entry), [])
        self.assertEqual(len(form_faults(entry | {"min_average_bytes_in_flight": 1})), 1)

    def test_loads_in_a_loop_of_their_own(self):
        body = ["@P0 BRA 0x40", "UBLKCP.S.G [UR10], [UR4], UR9", "@P1 BRA 0x10", "EXIT"]
        body += ["HGMMA.64x64x16.F32.BF16"] * 16 + ["@P1 BRA 0x40", "EXIT"]
        entry = DECODE | {
            "markers": ["HGMMA"],
            "loads": {"opcode": "UBLKCP", "weights_per_byte": 2, "bulk_bytes": 16384,
                      "bulk_ahead": 3, "own_loop": True},
            "mma": {"opcode": "HGMMA", "weights": "a", "threads": 256},
        }  # fmt: skip
        self.assertEqual(len(form_faults(entry)), 1)  # where its loads stand says nothing
        del entry["ahead"]
        self.assertEqual(form_faults(entry), [])
        line, faults = check(kernel(code(*body), threads=384, registers=168), entry)
        self.assertEqual((faults, line["on_the_way"], line["bytes_in_flight"]), ([], 17, 3 * 16384))
        self.assertEqual(line["per_unit"], round(17 * 256 / 32768, 2))  # by the threads that multiply
        other = kernel(code("EXIT"), threads=384, architecture="sm_80")
        self.assertEqual(len(check(other, entry)[1]), 1)
        self.assertEqual(check(other, entry | {"architectures": ["sm_90a"]})[1], [])
        del entry["loads"]["own_loop"]
        self.assertIn("the work is not known", check(kernel(code(*body), threads=384), entry)[1][0])

    def test_bulk_copies_of_which_some_bring_no_weights(self):
        body = ["UTMALDG.2D [UR8], [UR4]"] * 2 + ["HGMMA.64x64x16.F32.BF16"] * 16 + ["@P1 BRA 0x0", "EXIT"]
        loads = {"opcode": "UTMALDG", "weights_per_byte": 2, "bulk_bytes": [0, 16384]}
        entry = DECODE | {"markers": ["HGMMA"], "loads": loads,
                          "mma": {"opcode": "HGMMA", "weights": "a", "threads": 256}}  # fmt: skip
        del entry["ahead"]
        self.assertEqual(check(kernel(code(*body), threads=384), entry)[1], [])
        loads["bulk_bytes"] = [0, 8192]
        self.assertIn("loads 16384 weights", check(kernel(code(*body), threads=384), entry)[1][0])
        loads["bulk_bytes"] = [0, 0, 16384]
        self.assertIn("2 bulk copies on the way", check(kernel(code(*body), threads=384), entry)[1][0])

    def test_a_loop_for_each_tile_around_that_of_its_steps(self):
        load, work = "LDG.E.EF.64 R0 !5", "HMMA.16816 R4"
        body = [load, load, "MOV ?5", load, work, work, "@P0 BRA 0x20", "@P1 BRA 0x0", "EXIT"]
        self.faults(kernel(code(*body)), [])


class Form(unittest.TestCase):
    def test_the_file(self):
        self.assertEqual(budgets.entries()[1], [])

    def test_unknown_and_missing_keys(self):
        self.assertEqual(form_faults(DECODE), [])
        fault = f"{DECODE['kernel']}: the key load_before is unknown"
        self.assertEqual(form_faults(DECODE | {"load_before": []}), [fault])
        self.assertEqual(len(form_faults(DECODE | {"loads": {"opcodes": "LDG"}})), 1)
        self.assertEqual(len(form_faults({key: DECODE[key] for key in DECODE if key != "loads"})), 1)
        self.assertEqual(len(form_faults({key: DECODE[key] for key in DECODE if key != "mma"})), 1)
        self.assertEqual(len(form_faults(DECODE | {"region": "kernel"})), 1)
        self.assertEqual(form_faults({"kernel": "Cold", "because": "a test", "stack_bytes": 8}), [])
