"""What ptxas said when the library was compiled: kernels/keep_log.sh keeps it beside the objects."""

import re
import sys
from dataclasses import dataclass

from tools import ROOT

LOSS = "Potential Performance Loss"


@dataclass(frozen=True)
class Compiled:
    """One kernel for one architecture."""

    spilled: int  # bytes
    barriers: int  # that a block takes: all 16 if the compiler does not know the number of one


def from_logs(build):
    """{(architecture, symbol): Compiled}, and what ptxas calls a loss of performance."""
    logs = list((build / "kernels").rglob("*.cu.o.log"))
    sources = {source.name for source in (ROOT / "kernels").rglob("*.cu")}
    missing = sources - {log.name.removesuffix(".o.log") for log in logs}
    if missing:
        names = ", ".join(sorted(missing))
        sys.exit(f"error: no log of the compilation of {names} in {build / 'kernels'}: build again")
    compiled, losses = {}, []
    for log in logs:
        source = log.name.removesuffix(".o.log")
        if source in sources:  # not of a file that is gone
            of_log, lost = parsed(log.read_text())
            compiled |= of_log
            losses += [f"{source}: {line}" for line in lost]
    return compiled, losses


def parsed(log):
    """The same of one log."""
    compiled, losses, kernel, bytes_spilled = {}, [], None, 0
    for line in log.splitlines():
        if LOSS in line:
            losses.append(line)
        if match := re.search(r"Compiling entry function '(\S+)' for '(\w+)'", line):
            kernel = (match[2], match[1])
        elif match := re.search(r"\d+ bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill", line):
            bytes_spilled = int(match[1]) + int(match[2])
        elif kernel and re.search(r"Used \d+ registers", line):
            barriers = re.search(r"used (\d+) barriers", line)
            compiled[kernel] = Compiled(bytes_spilled, int(barriers[1]) if barriers else 0)
            kernel, bytes_spilled = None, 0
    return compiled, losses
