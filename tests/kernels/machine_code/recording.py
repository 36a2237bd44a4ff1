"""Machine code for the tests: recorded with cuobjdump, or written in short."""

import re
from pathlib import Path

import sass
from way import Way

RECORDED = Path(__file__).parent / "recorded"


def recorded(name):
    """The instructions of the one kernel in recorded/NAME.sass."""
    (instructions,) = sass.parsed((RECORDED / f"{name}.sass").read_text()).values()
    return instructions


def code(*texts):
    """Instructions at 0x0, 0x10 ... "LDG.E R1 !5" raises counter 5 until it is done, "HMMA ?5" waits for it."""
    instructions = []
    for i, text in enumerate(texts):
        counter = int(match[1]) if (match := re.search(r" !(\d)", text)) else sass.NO_COUNTER
        waits = sum(1 << int(digit) for digit in re.findall(r" \?(\d)", text))
        predicate, opcode, operands = re.fullmatch(r"(@\S+ )?(\S+) ?(.*)", re.sub(r" [!?]\d", "", text)).groups()
        control = waits << 11 | counter << 5
        instructions.append(sass.Instruction(16 * i, (predicate or "").strip(), opcode, operands, control))
    return instructions


def loop(*texts):
    """The same as a hot loop."""
    return Way(1, code(*texts), is_loop=True)
