"""Instructions as `cuobjdump -sass` prints them: which kernel has which, what one loads, multiplies and waits for."""

import re
from dataclasses import dataclass

NO_COUNTER = 7
LINE = re.compile(r"\s+/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+\s+)?([A-Z][\w.]*)\s*(.*?)\s*;(?:\s+/\* 0x[0-9a-f]{16} \*/)?")
SECOND_HALF = re.compile(r"\s+/\* 0x([0-9a-f]{16}) \*/")


@dataclass(frozen=True)
class Instruction:
    """One instruction. `control` is bits 105 to 121 of its code, which say what it waits for and what it raises."""

    address: int
    predicate: str
    opcode: str
    operands: str
    control: int = NO_COUNTER << 5

    @property
    def counter(self):
        """The one of six counters that the instruction raises until its result is there; NO_COUNTER if none."""
        return self.control >> 5 & 7

    @property
    def awaited(self):
        """The counters that have to be at zero before it is issued."""
        return {counter for counter in range(6) if self.control >> 11 & 0x3F & 1 << counter}

    def has(self, pattern):
        """Whether the opcode begins as the regular expression says."""
        return re.match(pattern, self.opcode) is not None


def parsed(text):
    """Of each (architecture, symbol) in what `cuobjdump -sass` prints, the instructions."""
    found, architecture, body = {}, None, None
    for line in text.splitlines():
        if match := re.match(r"arch = (\w+)", line.strip()):
            architecture = match[1]
        elif match := re.match(r"\s+Function : (\S+)", line):
            body = found.setdefault((architecture, match[1]), [])
        elif match := LINE.match(line):
            body.append(Instruction(int(match[1], 16), (match[2] or "").strip(), match[3], match[4]))
        elif body and (match := SECOND_HALF.match(line)):
            one = body[-1]
            body[-1] = Instruction(one.address, one.predicate, one.opcode, one.operands,
                                   int(match[1], 16) >> 41 & 0x1FFFF)  # fmt: skip
    return found


def target(instruction):
    """The address to which a branch goes; None for other instructions."""
    if instruction.opcode.split(".")[0] != "BRA":
        return None
    addresses = re.findall(r"0x[0-9a-f]+", instruction.operands)
    return int(addresses[-1], 16) if addresses else None


def width(opcode):
    """The bytes that one thread loads or stores."""
    parts = opcode.split(".")
    for part, size in (("U8", 1), ("S8", 1), ("U16", 2), ("S16", 2), ("64", 8), ("128", 16)):
        if part in parts:
            return size
    return 4


@dataclass(frozen=True)
class Shape:
    """m, n and k of one matrix instruction, and the threads that issue it together."""

    m: int
    n: int
    k: int
    threads: int

    def weights(self, operand):
        """The elements of its operand "a" (m by k) or "b" (k by n)."""
        return (self.m if operand == "a" else self.n) * self.k


def shape(opcode):
    """The shape of HMMA.16816, IMMA.16832, HGMMA.64x256x16 and the like."""
    if match := re.match(r"\w+GMMA\.(\d+)x(\d+)x(\d+)", opcode):
        return Shape(*map(int, match.groups()), threads=128)
    if match := re.match(r"\w+MMA\.(?:SP\.)?(16|8)(8)(\d+)", opcode):
        return Shape(*map(int, match.groups()), threads=32)
    raise ValueError(f"{opcode}: no shape is known")
