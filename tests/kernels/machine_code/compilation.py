"""What ptxas said when the library was compiled: kernels/keep_log.sh keeps it beside the objects."""

import re
import sys

from tools import ROOT

LOSS = "Potential Performance Loss"


def from_logs(build):
    """{(architecture, symbol): bytes that are spilled}, and what ptxas calls a loss of performance."""
    logs = list((build / "kernels").rglob("*.cu.o.log"))
    sources = {source.name for source in (ROOT / "kernels").rglob("*.cu")}
    missing = sources - {log.name.removesuffix(".o.log") for log in logs}
    if missing:
        names = ", ".join(sorted(missing))
        sys.exit(f"error: no log of the compilation of {names} in {build / 'kernels'}: build again")
    spilled, losses = {}, []
    for log in logs:
        source = log.name.removesuffix(".o.log")
        if source in sources:  # not of a file that is gone
            of_log, lost = parsed(log.read_text())
            spilled |= of_log
            losses += [f"{source}: {line}" for line in lost]
    return spilled, losses


def parsed(log):
    """The same of one log."""
    spilled, losses, kernel, bytes_spilled = {}, [], None, 0
    for line in log.splitlines():
        if LOSS in line:
            losses.append(line)
        if match := re.search(r"Compiling entry function '(\S+)' for '(\w+)'", line):
            kernel = (match[2], match[1])
        elif match := re.search(r"\d+ bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill", line):
            bytes_spilled = int(match[1]) + int(match[2])
        elif kernel and re.search(r"Used \d+ registers", line):
            spilled[kernel] = bytes_spilled
            kernel, bytes_spilled = None, 0
    return spilled, losses
