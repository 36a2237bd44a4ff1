"""The bytes that a thread has asked global memory for and that it has not waited for yet.

A load is in flight from its instruction to the first that waits for its counter. Asynchronous copies are in flight in
groups: LDGDEPBAR ends one, DEPBAR.LE leaves the newest few. A load that a predicate turns off counts.
"""

import re
from dataclasses import dataclass

from sass import NO_COUNTER, width

PREFETCH = r"CCTL\.E\.P|UBLKPF|UTMAPF"
BULK = r"UBLKCP|UTMALDG"
PASSES = 10  # of a loop, until as much is in flight as ever will be: more than groups can be left


@dataclass(frozen=True)
class InFlight:
    """Bytes of the loads asked about, and of these and all others, at the best point of the way; and of those asked
    about on average, if each instruction takes as long as any other."""

    asked: int
    all: int
    average_asked: float


def prefetches(way):
    """Prefetches into the L2 cache: no register or shared memory waits for them, so they are told apart."""
    return way.count(PREFETCH)


def in_flight(way, load):
    """The bytes of one thread that are in flight. Bulk copies are not among them: their size is in a register."""
    code = way.instructions
    waits_for_groups = any(one.has(r"DEPBAR\.LE") for one in code)
    loading, group, groups, groups_counter = {}, {}, [], NO_COUNTER
    most_asked = most_of_all = 0
    for _ in range(PASSES if way.is_loop else 1):
        sum_asked = 0  # of the pass
        for i, one in enumerate(code):
            loading = {at: sizes for at, sizes in loading.items() if code[at].counter not in one.awaited}
            if match := re.match(r"SB(\d), 0x(\w+)", one.operands) if one.has(r"DEPBAR\.LE") else None:
                counter, left = int(match[1]), int(match[2], 16)
                if counter == groups_counter:
                    groups = groups[len(groups) - left :] if left < len(groups) else groups
                elif left == 0:
                    loading = {at: sizes for at, sizes in loading.items() if code[at].counter != counter}
            size = width(one.opcode)
            new = (size if one.has(load) else 0, size)
            if one.has(r"LDG\b"):
                loading[i] = new
            elif one.has("LDGSTS"):
                # Without a wait that says how many groups are left, one pass's copies count.
                (group if waits_for_groups else loading)[i] = new
            elif one.has("LDGDEPBAR") and waits_for_groups:
                groups, group, groups_counter = groups + [group], {}, one.counter
            pending = [*loading.values(), *group.values(), *(new for old in groups for new in old.values())]
            asked = sum(asked for asked, _ in pending)
            sum_asked += asked
            most_asked, most_of_all = max(most_asked, asked), max(most_of_all, sum(size for _, size in pending))
    return InFlight(most_asked, most_of_all, sum_asked / len(code))
