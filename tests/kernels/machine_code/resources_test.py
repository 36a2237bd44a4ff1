import unittest

import compilation
import resources
from compilation import Compiled
from resources import Resources, resident_blocks

USAGE = """
Fatbin elf code:
================
arch = sm_80
Resource usage:
 Common:
  GLOBAL:0
 Function _Z1fv:
  REG:48 STACK:16 SHARED:96 LOCAL:8 CONSTANT[0]:520 TEXTURE:0 SURFACE:0 SAMPLER:0
arch = sm_90a
 Function _Z1fv:
  REG:123 STACK:0 SHARED:1120 LOCAL:0 CONSTANT[0]:696 TEXTURE:0 SURFACE:0 SAMPLER:0
"""

ELF = """
arch = sm_80
.nv.info
\tAttribute:\tEIATTR_REGCOUNT
\tValue:\tfunction: _Z1fv(0x1d)\tregister count: 48
.nv.info._Z1fv
\t<0x11>
\tAttribute:\tEIATTR_MAX_THREADS
\tFormat:\tEIFMT_SVAL
\tValue:\t0x100 0x1 0x1
arch = sm_90a
.nv.info._Z1fv
\tAttribute:\tEIATTR_EXIT_INSTR_OFFSETS
\tValue:\t0x130 0x2340 0x1
"""

LOG = """
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z1fv' for 'sm_80'
ptxas info    : Function properties for _Z1fv
    24 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 48 registers, used 3 barriers, 520 bytes cmem[0]
ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized
ptxas info    : Compiling entry function '_Z1gv' for 'sm_80'
ptxas info    : Used 12 registers, 520 bytes cmem[0]
"""


class Parsing(unittest.TestCase):
    def test_usage_and_launch_bounds(self):
        self.assertEqual(resources.parsed(USAGE, ELF), {
            ("sm_80", "_Z1fv"): Resources(48, 16, 8, 96, 256),
            ("sm_90a", "_Z1fv"): Resources(123, 0, 0, 96, None),  # the compiler counts 1 KB that is kept
        })  # fmt: skip

    def test_spills_barriers_and_losses(self):
        compiled, losses = compilation.parsed(LOG)
        self.assertEqual(compiled, {("sm_80", "_Z1fv"): Compiled(20, 3), ("sm_80", "_Z1gv"): Compiled(0, 0)})
        self.assertEqual(len(losses), 1)


class ResidentBlocks(unittest.TestCase):
    def check(self, architecture, registers, shared, threads, dynamic, expected):
        found = resident_blocks(architecture, Resources(registers, 0, 0, shared, threads), dynamic)
        self.assertEqual(found, expected)

    def test_registers(self):
        self.check("sm_90a", 128, 0, 256, 0, 2)
        self.check("sm_90a", 129, 0, 256, 0, 1)
        self.check("sm_80", 96, 0, 256, 0, 2)
        self.check("sm_80", 96, 0, 32, 0, 20)  # 5 for each scheduler, not 21 of all registers
        self.check("sm_80", 40, 0, 256, 0, 6)

    def test_shared_memory(self):
        self.check("sm_80", 32, 0, 256, 99 << 10, 1)
        self.check("sm_90a", 32, 0, 256, 99 << 10, 2)
        self.check("sm_90a", 32, 0, 256, 113 << 10, 2)
        self.check("sm_90a", 32, 1, 256, 113 << 10, 1)
        self.check("sm_90a", 32, 0, 256, 228 << 10, 0)  # one block may have 227 KB

    def test_warps_and_blocks(self):
        self.check("sm_90a", 16, 0, 1024, 0, 2)
        self.check("sm_90a", 16, 0, 32, 0, 32)
