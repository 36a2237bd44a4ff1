"""Basic blocks and loops of a kernel, and the hot way through them.

The hot way is the shortest through the hot loop, or through a kernel that has none, among those that meet most of its
markers: instructions by which the way is known, as wide stores or matrix products. The hot loop is the one with most
work. If a loop around it has as much, it is the inner one, which has fewer instructions. Without work that is known,
markers decide. In the region "inner loop", a loop with another marked one inside is left out. The compiler makes two
loops of one that it unrolls, one inside the other, and the outer one may have more work than the hot loop. What only
diverged warps run does not count; instructions that a predicate turns off do, since they are issued all the same. Of a
loop on the way, one pass counts.
"""

import re
from dataclasses import dataclass

from sass import target

ENDS = {"BRA", "EXIT", "RET", "BRX", "JMP", "BREAK"}


@dataclass(frozen=True)
class Way:
    """What is issued on the way, in order; after the last of a loop the first follows."""

    markers: int
    instructions: list
    is_loop: bool

    @property
    def issued(self):
        return sum(one.opcode != "NOP" for one in self.instructions)

    def count(self, pattern):
        return sum(one.has(pattern) for one in self.instructions)


def blocks_of(instructions):
    """Basic blocks as (first, end) of instructions, and the blocks that may follow each."""
    index = {instruction.address: i for i, instruction in enumerate(instructions)}
    starts = {0}
    for i, instruction in enumerate(instructions):
        if instruction.opcode.split(".")[0] in ENDS:
            starts |= {i + 1, index.get(target(instruction), 0)}
    starts = sorted(start for start in starts if start < len(instructions))
    number = {start: n for n, start in enumerate(starts)}
    blocks, successors = [], []
    for start, end in zip(starts, starts[1:] + [len(instructions)]):
        blocks.append((start, end))
        last = instructions[end - 1]
        follows = set()
        conditional = bool(last.predicate) or re.match(r"!?U?P\d", last.operands) is not None
        diverged = last.opcode.startswith("BRA.DIV")
        if last.opcode.split(".")[0] not in ENDS or conditional or diverged:
            follows.add(number.get(end))
        if target(last) in index and not diverged:
            follows.add(number[index[target(last)]])
        successors.append([n for n in follows if n is not None])
    return blocks, successors


def back_edges(successors):
    """Edges to a block that the way there has come through."""
    edges, state, stack = set(), {}, [(0, iter(successors[0]))]
    state[0] = "open"
    while stack:
        block, rest = stack[-1]
        for following in rest:
            if state.get(following) == "open":
                edges.add((block, following))
            elif following not in state:
                state[following] = "open"
                stack.append((following, iter(successors[following])))
                break
        else:
            state[block] = "done"
            stack.pop()
    return edges


def backwards(first, forward):
    """The blocks that can be reached, each after all that follow it; `forward` has no cycles."""
    order, seen, stack = [], {first}, [(first, iter(forward[first]))]
    while stack:
        block, rest = stack[-1]
        following = next((one for one in rest if one not in seen), None)
        if following is None:
            order.append(block)
            stack.pop()
        else:
            seen.add(following)
            stack.append((following, iter(forward[following])))
    return order


def hot_way(instructions, markers, region="loop", work=None):
    """The hot way through the region, "loop", "inner loop" or "kernel"; None if it has no marker. Markers and work are
    regular expressions."""
    blocks, successors = blocks_of(instructions)
    if not blocks:
        return None
    edges = back_edges(successors)
    forward = [[n for n in following if (block, n) not in edges] for block, following in enumerate(successors)]
    weight = []  # to be made as large as possible: first the markers, then minus the instructions
    for start, end in blocks:
        code = instructions[start:end]
        met = sum(any(one.has(marker) for marker in markers) for one in code)
        weight.append((met, -sum(one.opcode != "NOP" for one in code)))

    def best_way(first, last):
        """(weight, blocks) from a block to another, or (last: None) to an end of the kernel; None if there is none."""
        best = {}
        for block in backwards(first, forward):
            ways = [best[n] for n in forward[block] if best.get(n)] if block != last else []
            if block == last or (last is None and instructions[blocks[block][1] - 1].opcode == "EXIT"):
                ways.append(((0, 0), []))
            if ways:
                (met, negative), rest = max(ways, key=lambda way: way[0])
                best[block] = ((weight[block][0] + met, weight[block][1] + negative), [block] + rest)
        return best.get(first)

    pairs = [(0, None)] if region == "kernel" else [(first, last) for last, first in edges]
    ways = {pair: way for pair in pairs if (way := best_way(*pair)) is not None and way[0][0] > 0}
    if region == "inner loop":
        ways = {(first, last): way for (first, last), way in ways.items()
                if not any(first <= inner[0] and inner[1] <= last for inner in ways if inner != (first, last))}
    found = [Way(met, [one for block in chosen for one in instructions[slice(*blocks[block])]], region != "kernel")
             for (met, _), chosen in ways.values()]  # fmt: skip
    return max(found, key=lambda way: (way.count(work) if work else way.markers, -way.issued), default=None)
