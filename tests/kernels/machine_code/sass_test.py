import unittest

import sass
from recording import recorded

# The beginning of a kernel as cuobjdump -sass prints it, for two architectures.
TEXT = """
Fatbin elf code:
================
arch = sm_80
code version = [1,8]

\tcode for sm_80
\t\tFunction : _Z1fv
\t.headerflags\t@"EF_CUDA_SM80 EF_CUDA_VIRTUAL_SM(EF_CUDA_SM80)"
        /*0000*/                   IMAD.MOV.U32 R1, RZ, RZ, c[0x0][0x28] ;   /* 0x00000a00ff017624 */
                                                                             /* 0x000fe400078e00ff */
        /*0010*/              @!P3 LDG.E.U8.CONSTANT R91, desc[UR8][R28.64] ;  /* 0x000000081c5bb981 */
                                                                               /* 0x000f62000c1e9100 */
        /*0020*/                   IMAD.MOV.U32 R70, RZ, RZ, R91 ;           /* 0x000000ffff467224 */
                                                                             /* 0x020fe200078e005b */
arch = sm_90a
\t\tFunction : _Z1fv
        /*0000*/                   EXIT ;                                    /* 0x000000000000794d */
                                                                             /* 0x000fea0003800000 */
"""


class Parsing(unittest.TestCase):
    def test_kernels_are_told_apart_by_architecture(self):
        found = sass.parsed(TEXT)
        lengths = {key: len(body) for key, body in found.items()}
        self.assertEqual(lengths, {("sm_80", "_Z1fv"): 3, ("sm_90a", "_Z1fv"): 1})

    def test_predicate_opcode_and_operands(self):
        one = sass.parsed(TEXT)["sm_80", "_Z1fv"][1]
        self.assertEqual((one.address, one.predicate, one.opcode, one.operands),
                         (0x10, "@!P3", "LDG.E.U8.CONSTANT", "R91, desc[UR8][R28.64]"))  # fmt: skip

    def test_a_load_raises_a_counter_for_which_its_user_waits(self):
        first, load, user = sass.parsed(TEXT)["sm_80", "_Z1fv"]
        self.assertEqual((first.counter, first.awaited), (sass.NO_COUNTER, set()))
        self.assertEqual((load.counter, load.awaited), (5, set()))
        self.assertEqual((user.counter, user.awaited), (sass.NO_COUNTER, {5}))

    def test_a_recorded_loop(self):
        loop = recorded("decode_m8")
        self.assertEqual(sum(one.has("HMMA.16816") for one in loop), 16)
        self.assertEqual({one.counter for one in loop if one.has(r"LDG\b")}, {5})
        self.assertEqual(sass.target(loop[-1]), loop[0].address)


class Opcodes(unittest.TestCase):
    def test_widths(self):
        for opcode, expected in [
            ("LDG.E", 4), ("LDG.E.EF.64", 8), ("LDG.E.EF.128", 16), ("LDG.E.U8.CONSTANT", 1), ("STG.E.EF.S8", 1),
            ("LDG.E.EF.U16", 2), ("LDG.E.LTC128B", 4), ("LDGSTS.E.BYPASS.LTC128B.128", 16), ("LDGSTS.E.64", 8),
        ]:  # fmt: skip
            self.assertEqual(sass.width(opcode), expected, opcode)

    def test_shapes(self):
        for opcode, expected in [
            ("HMMA.16816.F32.BF16", (16, 8, 16, 32)), ("HMMA.1688.F32", (16, 8, 8, 32)),
            ("IMMA.16832.S8.S8", (16, 8, 32, 32)), ("HGMMA.64x256x16.F32.BF16", (64, 256, 16, 128)),
            ("QGMMA.64x64x32.F32.E4M3.E4M3", (64, 64, 32, 128)),
        ]:  # fmt: skip
            shape = sass.shape(opcode)
            self.assertEqual((shape.m, shape.n, shape.k, shape.threads), expected, opcode)
        with self.assertRaises(ValueError):
            sass.shape("HMMA")

    def test_weights_of_an_operand(self):
        shape = sass.shape("HMMA.16816.F32")
        self.assertEqual((shape.weights("a"), shape.weights("b")), (256, 128))
