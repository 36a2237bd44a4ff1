"""What a kernel takes of a multiprocessor, as its machine code says, and how many of its blocks fit on one."""

import re
from dataclasses import dataclass, replace

from tools import cuobjdump

# Of a multiprocessor. Each block takes 1 KB of shared memory more than it asks for.
SHARED_BYTES = {"sm_80": 164 << 10, "sm_90a": 228 << 10}
SHARED_BYTES_KEPT = 1 << 10
REGISTERS, WARPS, BLOCKS, BARRIERS = 65536, 64, 32, 64
STEP_OF_REGISTERS = 256  # in which a warp takes them
SCHEDULERS = 4  # each has a quarter of the registers
STEP_OF_SHARED = 128


@dataclass(frozen=True)
class Resources:
    """Registers are a thread's, `stack` and `local` bytes too; `shared` is a block's without what launches ask for."""

    registers: int
    stack: int
    local: int
    shared: int
    threads: int | None = None  # of a block, at most: the launch bound


def parsed(usage, elf):
    """{(architecture, symbol): Resources} of what cuobjdump prints with --dump-resource-usage and with -elf."""
    found, architecture, symbol = {}, None, None
    for line in usage.splitlines():
        if match := re.match(r"arch = (\w+)", line):
            architecture = match[1]
        elif match := re.match(r"\s*Function (\S+):", line):
            symbol = match[1]
        elif match := re.match(r"\s*REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", line):
            registers, stack, shared, local = map(int, match.groups())
            # From 9.0 on the compiler counts what the multiprocessor keeps.
            kept = SHARED_BYTES_KEPT if int(re.search(r"\d+", architecture)[0]) >= 90 else 0
            found[architecture, symbol] = Resources(registers, stack, local, max(0, shared - kept))
    attribute = None
    for line in elf.splitlines():
        if match := re.match(r"arch = (\w+)", line):
            architecture, symbol = match[1], None
        elif match := re.match(r"\.nv\.info\.(\S+)", line):
            symbol = match[1]
        elif match := re.match(r"\s*Attribute:\s*(\w+)", line):
            attribute = match[1]
        elif attribute == "EIATTR_MAX_THREADS" and (match := re.match(r"\s*Value:\s*(\w+) (\w+) (\w+)", line)):
            x, y, z = (int(word, 16) for word in match.groups())
            found[architecture, symbol] = replace(found[architecture, symbol], threads=x * y * z)
    return found


def resources_of(library, folder):
    return parsed(cuobjdump(folder, "--dump-resource-usage", library), cuobjdump(folder, "-elf", library))


def round_up(value, step):
    return -(-value // step) * step


def resident_blocks(architecture, resources, dynamic_shared=0):
    """How many blocks fit on one multiprocessor, if each asks for so much dynamic shared memory at launch."""
    warps = -(-resources.threads // 32)
    of_a_warp = round_up(32 * max(resources.registers, 1), STEP_OF_REGISTERS)
    warps_with_registers = SCHEDULERS * (REGISTERS // SCHEDULERS // of_a_warp)
    shared = round_up(resources.shared + dynamic_shared + SHARED_BYTES_KEPT, STEP_OF_SHARED)
    return min(BLOCKS, WARPS // warps, warps_with_registers // warps, SHARED_BYTES[architecture] // shared)
