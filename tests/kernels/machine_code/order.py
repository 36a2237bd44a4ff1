"""Where the loads of a hot loop stand, relative to barriers, to the loop's work and to the waits for them.

A loop has no first instruction: its order is a circle. So each question begins at a load or at a wait and goes around
from there.
"""

import re


def back_around(way, start):
    """The other instructions of a loop, from the one before `start` on, backwards."""
    code = way.instructions
    return (code[(start - i) % len(code)] for i in range(1, len(code)))


def positions(way, pattern):
    return [i for i, one in enumerate(way.instructions) if one.has(pattern)]


def behind(way, load, barriers, work):
    """The loads that stand between a barrier and the next work. While warps wait at that barrier for the slowest, the
    next step's loads have not been asked for."""
    late = []
    for i in positions(way, load):
        for one in back_around(way, i):
            if one.has(work):
                break
            if any(one.has(barrier) for barrier in barriers):
                late.append(way.instructions[i])
                break
    return late


def waits_too_early(way, load, work):
    """Whether the loop waits for loads that it has only just asked for, without work in between.

    A counter tells only that all of its loads have arrived. So of each counter, all loads of a step are asked for, then
    the loop works, and then it waits for all of them.
    """
    loads = positions(way, load)
    for counter in {way.instructions[i].counter for i in loads}:
        events = ""  # L a load, M work, W a wait
        for one in way.instructions:
            events += "W" * (counter in one.awaited) + "L" * (one.has(load) and one.counter == counter)
            events += "M" * one.has(work)
        after_wait = events.rfind("W") + 1
        if not re.fullmatch(r"M*L[LM]*(M+W[WM]*)?", events[after_wait:] + events[:after_wait]):
            return True
    return not loads
