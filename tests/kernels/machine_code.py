#!/usr/bin/env python3
"""Examines the machine code of libnibble_cuda.so, on any machine: no GPU is needed.

    tests/kernels/machine_code.py [--build build/release] [--record]
    tests/kernels/machine_code.py --test     whether it counts a planted example right

Fails if a kernel keeps something in local memory (spilled registers, arrays that are indexed), if ptxas reported a loss
of performance (wgmma that it serializes), if the library has 64 MB or more, if the hot loop of a kernel has more
instructions than kernels/instruction_budgets.json allows, if such a loop waits for its loads after it has asked for the
next step's, or if a kernel that tests/kernels/hand_written.cu has without
the device layer does not have as many instructions of each opcode. --record writes the counts to
bench/results/kernel_instructions.jsonl.

What is counted is the shortest way through the hot loop, or through a kernel that has none, among those that meet most
of its markers: instructions by which the way is known, as wide stores or matrix products. The hot loop is the one with
most of them. What only diverged warps run does not count; instructions that a predicate turns off do, since they are
issued all the same. Of a loop on the way, one pass counts.

cuobjdump and nvdisasm are taken from PATH, from beside nvcc, from an installed package `triton`, or from one that is
installed into build/cuda_tools for this.

One file, because every check goes by the same blocks and loops of the disassembly, and --test plants its example there.
"""

import argparse
import collections
import datetime
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUDGETS = ROOT / "kernels" / "instruction_budgets.json"
RECORD = ROOT / "bench" / "results" / "kernel_instructions.jsonl"
LARGEST_LIBRARY = 64 << 20
HAND_WRITTEN_SOURCE = "hand_written.cu"
HAND_WRITTEN = {"hand_written::four_bit_dequantize": "FourBitDequantize<bf16, 0>"}
LOSS = "Potential Performance Loss"

# control: bits 105 to 121 of the code; which counter the instruction raises until it is done, which it waits for.
Instruction = collections.namedtuple("Instruction", "address predicate opcode operands control", defaults=[0])


def output_of(*command, **options):
    return subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True, **options).stdout


# -- Tools


def tools():
    """The folder of cuobjdump and nvdisasm: both have to be there, since one calls the other."""

    def complete(folder):
        return all((folder / tool).is_file() for tool in ("cuobjdump", "nvdisasm"))

    def in_packages(packages):
        return packages / "triton" / "backends" / "nvidia" / "bin"

    folders = [Path(found).parent for found in (shutil.which("cuobjdump"), shutil.which("nvcc")) if found]
    folders += [Path(os.environ.get("CUDA_PATH", "/usr/local/cuda")) / "bin"]
    if spec := importlib.util.find_spec("triton"):
        folders.append(in_packages(Path(spec.origin).parents[1]))
    environment = ROOT / "build" / "cuda_tools"
    installed = list(environment.glob("lib/python3*/site-packages"))
    folders += map(in_packages, installed)
    for folder in folders:
        if complete(folder):
            return folder
    print("cuobjdump and nvdisasm are not here: installing triton, which has them, into build/cuda_tools")
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    subprocess.run([environment / "bin" / "pip", "install", "-q", "triton"], check=True)
    folder = in_packages(next(environment.glob("lib/python3*/site-packages")))
    if not complete(folder):
        sys.exit(f"error: {folder} has no cuobjdump and nvdisasm")
    return folder


# -- Kernels and their instructions


def short_names(symbols):
    """`FourBitDequantize<bf16, 0>` for the symbol of device::run<...>."""
    lines = output_of("c++filt", input="\n".join(symbols)).splitlines()
    names = {}
    for symbol, name in zip(symbols, lines):
        if match := re.fullmatch(r"void nibble::device::run<(.*)>\(.*\)", name):
            name = match[1].strip()
        name = re.sub(r"\((?:[\w:]|\(anonymous namespace\))+\)(?=\d|true|false)", "", name)  # casts of enumerators
        name = re.sub(r"(?:\(anonymous namespace\)|nibble|kernels|device)::", "", name)
        names[symbol] = name.replace(" >", ">")
    return names


def kernels(library, folder):
    """Of each architecture and symbol in a library or an object, the instructions."""
    environment = dict(os.environ, PATH=f"{folder}{os.pathsep}{os.environ['PATH']}")
    found, architecture, body = {}, None, None
    line_of_code = re.compile(r"\s+/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")
    for line in output_of(folder / "cuobjdump", "-sass", library, env=environment).splitlines():
        if match := re.match(r"arch = (\w+)", line.strip()):
            architecture = match[1]
        elif match := re.match(r"\s+Function : (\S+)", line):
            body = found.setdefault((architecture, match[1]), [])
        elif match := line_of_code.match(line):
            body.append(Instruction(int(match[1], 16), match[2] or "", match[3], match[4]))
        elif body and (match := re.match(r"\s+/\* 0x([0-9a-f]{16}) \*/", line)):
            body[-1] = body[-1]._replace(control=int(match[1], 16) >> 41 & 0x1FFFF)
    return found


# -- The hot way


def blocks_of(instructions):
    """Basic blocks as (first, end) of instructions, and the blocks that may follow each."""
    index = {instruction.address: i for i, instruction in enumerate(instructions)}

    def target(instruction):
        if instruction.opcode.split(".")[0] != "BRA":
            return None
        addresses = re.findall(r"0x[0-9a-f]+", instruction.operands)
        return index.get(int(addresses[-1], 16)) if addresses else None

    ends = {"BRA", "EXIT", "RET", "BRX", "JMP", "BREAK"}
    starts = {0}
    for i, instruction in enumerate(instructions):
        if instruction.opcode.split(".")[0] in ends:
            starts.add(i + 1)
            if target(instruction) is not None:
                starts.add(target(instruction))
    starts = sorted(start for start in starts if start < len(instructions))
    number = {start: n for n, start in enumerate(starts)}
    blocks, successors = [], []
    for start, end in zip(starts, starts[1:] + [len(instructions)]):
        blocks.append((start, end))
        last = instructions[end - 1]
        follows = set()
        conditional = bool(last.predicate) or re.match(r"!?U?P\d", last.operands) is not None
        diverged = last.opcode.startswith("BRA.DIV")
        if last.opcode.split(".")[0] not in ends or conditional or diverged:
            follows.add(number.get(end))
        if target(last) is not None and not diverged:
            follows.add(number[target(last)])
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


def hot_way(instructions, markers, region):
    """(markers, instructions) on the way through the region, "loop" or "kernel"; None if it has no marker."""
    blocks, successors = blocks_of(instructions)
    if not blocks:
        return None
    edges = back_edges(successors)
    weight = []  # to be made as large as possible: first the markers, then minus the instructions
    for start, end in blocks:
        opcodes = [instruction.opcode for instruction in instructions[start:end]]
        met = sum(any(opcode.startswith(marker) for marker in markers) for opcode in opcodes)
        weight.append((met, -sum(opcode != "NOP" for opcode in opcodes)))

    def best_way(first, last):
        """From a block to another, or (last: None) to an end of the kernel."""
        best = {}

        def best_from(block):
            if block not in best:
                ways = [best_from(n) for n in successors[block] if (block, n) not in edges] if block != last else []
                ways = [way for way in ways if way is not None]
                if block == last or (last is None and instructions[blocks[block][1] - 1].opcode == "EXIT"):
                    ways.append((0, 0))
                best[block] = (weight[block][0] + max(ways)[0], weight[block][1] + max(ways)[1]) if ways else None
            return best[block]

        return best_from(first)

    sys.setrecursionlimit(100000)
    pairs = [(first, last) for last, first in edges] if region == "loop" else [(0, None)]
    ways = [way for way in (best_way(first, last) for first, last in pairs) if way is not None and way[0] > 0]
    if not ways:
        return None
    met, negative = max(ways)
    return met, -negative


def waits_too_late(instructions, load):
    """Whether the loop with most of these loads waits for them after the first: for what it has just asked for."""

    def loads_of(code):
        return [i for i, instruction in enumerate(code) if instruction.opcode.startswith(load)]

    index, loops = {instruction.address: i for i, instruction in enumerate(instructions)}, []
    for end, instruction in enumerate(instructions):
        addresses = re.findall(r"0x[0-9a-f]+", instruction.operands) if instruction.opcode == "BRA" else []
        begin = index.get(int(addresses[-1], 16), end) if addresses else end
        if begin < end:
            loops.append(instructions[begin : end + 1])
    loop = max(loops, key=lambda loop: len(loads_of(loop)), default=[])
    loads = loads_of(loop)
    counters = {loop[i].control >> 5 & 7 for i in loads}
    waits = [one.control >> 11 & 0x3F for one in loop[loads[0] + 1 :]] if loads else []
    return not loads or any(wait >> counter & 1 for wait in waits for counter in counters)


# -- Checks


def from_logs(build):
    """What ptxas said: {(architecture, symbol): (registers, stack bytes, spilled bytes)}, and its complaints."""
    logs = list((build / "kernels").rglob("*.cu.o.log"))
    sources = {source.name for source in (ROOT / "kernels").rglob("*.cu")}
    missing = sources - {log.name.removesuffix(".o.log") for log in logs}
    if missing:
        sys.exit(f"error: no log of the compilation of {', '.join(sorted(missing))} in {build / 'kernels'}: build again")
    said, losses = {}, []
    for log in logs:
        if log.name.removesuffix(".o.log") not in sources:
            continue  # of a file that is gone
        kernel, stack, spilled = None, 0, 0
        for line in log.read_text().splitlines():
            if LOSS in line:
                losses.append(f"{log.name.removesuffix('.o.log')}: {line}")
            if match := re.search(r"Compiling entry function '(\S+)' for '(\w+)'", line):
                kernel = (match[2], match[1])
            elif match := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill", line):
                stack, spilled = int(match[1]), int(match[2]) + int(match[3])
            elif kernel and (match := re.search(r"Used (\d+) registers", line)):
                said[kernel] = (int(match[1]), stack, spilled)
                kernel, stack, spilled = None, 0, 0
    return said, losses


def hand_written(build, folder):
    """{(architecture, name of the layer's kernel): instructions} of what is written without the layer."""
    command = ["cmake", "--build", build, "--target", "nibble_hand_written"]
    built = subprocess.run(command, capture_output=True, text=True)
    if built.returncode != 0:
        sys.exit(f"error: {HAND_WRITTEN_SOURCE} does not build:\n{built.stdout}{built.stderr}")
    objects = list((build / "kernels").rglob(f"{HAND_WRITTEN_SOURCE}.o"))
    if len(objects) != 1:
        sys.exit(f"error: {len(objects)} objects of {HAND_WRITTEN_SOURCE} in {build / 'kernels'}, must be one")
    found = kernels(objects[0], folder)
    names = short_names(sorted({symbol for _, symbol in found}))
    return {(architecture, HAND_WRITTEN.get(names[symbol].split("(")[0], names[symbol])): instructions
            for (architecture, symbol), instructions in found.items()}  # fmt: skip


def differences(kernel, by_hand):
    """Where two kernels have unequal numbers of instructions: "IMAD 3, by hand 4"."""
    if not kernel or not by_hand:
        return f"{len(kernel)} instructions, by hand {len(by_hand)}"
    counts = [collections.Counter(instruction.opcode for instruction in code) for code in (kernel, by_hand)]
    return ", ".join(f"{opcode} {counts[0][opcode]}, by hand {counts[1][opcode]}"
                     for opcode in sorted(counts[0].keys() | counts[1].keys())
                     if counts[0][opcode] != counts[1][opcode])  # fmt: skip


def test():
    """Two loops, one in the other, with a rare way, and code for diverged warps at the end."""
    code = [
        "S2R R0",
        "LDG.E.EF R1",  # 1: the outer loop
        "@P0 BRA 0x50",
        "LDG.E.U8 R2",
        "FMUL R2",
        "BRA.DIV UR4, 0xd0",  # 5: where the way around the two before joins
        "STG.E.128 R1",
        "@!P1 BRA 0xa0",
        "STG.E.U16 R1",  # 8: the inner loop
        "@P2 BRA 0x80",
        "@P3 BRA 0x10",  # 10
        "NOP",
        "EXIT",
        "WARPSYNC R3",  # 13: diverged
        "BRA 0x60",
    ]
    instructions = []
    for i, text in enumerate(code):
        predicate, opcode, operands = re.fullmatch(r"(@\S+ )?(\S+) ?(.*)", text).groups()
        instructions.append(Instruction(16 * i, predicate or "", opcode, operands))
    for markers, region, expected in [
        (["STG.E.128"], "loop", (1, 6)),
        (["STG.E.128", "LDG.E.U8"], "loop", (2, 8)),
        (["STG.E.U16"], "loop", (1, 2)),
        (["STG.E.128", "LDG.E.U8"], "kernel", (2, 10)),
        (["HMMA"], "loop", None),
    ]:
        way = hot_way(instructions, markers, region)
        if way != expected:
            sys.exit(f"error: {region} with {markers}: {way}, expected {expected}")
    for kernel, by_hand, expected in [
        (instructions, list(reversed(instructions)), ""),
        (instructions, instructions[1:], "S2R 1, by hand 0"),
        (instructions, [], "15 instructions, by hand 0"),
        ([], [], "0 instructions, by hand 0"),
    ]:
        if differences(kernel, by_hand) != expected:
            sys.exit(f"error: {differences(kernel, by_hand)}, expected {expected}")
    for waiting, expected in [(6, True), (1, False), (12, False)]:  # after the load, at it, outside of the loop
        controlled = [one._replace(control=(1 << 11 + 5 if i == waiting else 0) | (5 << 5 if i == 1 else 7 << 5))
                      for i, one in enumerate(instructions)]  # fmt: skip
        if waits_too_late(controlled, "LDG.E.EF") != expected:
            sys.exit(f"error: a wait at instruction {waiting}: {not expected}, expected {expected}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release", help="the build directory")
    parser.add_argument("--record", action="store_true", help=f"write {RECORD.relative_to(ROOT)}")
    parser.add_argument("--test", action="store_true", help="test the counting itself")
    options = parser.parse_args()
    if options.test:
        return test()

    library = options.build / "kernels" / "libnibble_cuda.so"
    if not library.is_file():
        sys.exit(f"error: {library} is not there: build the target nibble_cuda")
    said, faults = from_logs(options.build)
    size = library.stat().st_size
    if size >= LARGEST_LIBRARY:
        faults.append(f"{library.name} has {size} bytes, must be below {LARGEST_LIBRARY}")

    folder = tools()
    found = kernels(library, folder)
    if not found:
        sys.exit(f"error: no machine code in {library}")
    names = short_names(sorted({symbol for _, symbol in found}))
    by_hand = hand_written(options.build, folder)
    entries = json.loads(BUDGETS.read_text())["kernels"]
    used, lines, compared = set(), [], set()
    for (architecture, symbol), instructions in sorted(found.items(), key=lambda item: (names[item[0][1]], item[0])):
        name = names[symbol]
        where = f"{name}, {architecture}"
        fitting = [i for i, entry in enumerate(entries) if re.fullmatch(entry["kernel"], name)]
        used.update(fitting)
        if len(fitting) != 1:
            faults.append(f"{where}: fits {len(fitting)} entries of {BUDGETS.relative_to(ROOT)}, must fit one")
            continue
        if (architecture, symbol) not in said:
            faults.append(f"{where}: no log says how it was compiled")
            continue
        registers, stack, spilled = said[architecture, symbol]
        if stack or spilled:
            faults.append(f"{where}: {stack} bytes of local memory, {spilled} bytes of spills; must have none")
        line = {"kernel": name, "architecture": architecture, "registers": registers, "instructions": len(instructions)}
        entry = entries[fitting[0]]
        if "budget" in entry:
            region = entry.get("region", "loop")
            way = hot_way(instructions, entry["markers"], region)
            if way is None:
                faults.append(f"{where}: no {region} has one of {', '.join(entry['markers'])}")
                continue
            per = way[1] / entry["units"]
            line |= {"unit": entry["unit"], "markers": way[0], "on_the_way": way[1], "units": entry["units"],
                     "per_unit": round(per, 2), "budget": entry["budget"], "at_bandwidth": entry["at_bandwidth"]}  # fmt: skip
            if "ahead" in entry and waits_too_late(instructions, entry["ahead"]):
                faults.append(f"{where}: waits for {entry['ahead']} after the next step's have been asked for")
            if per > entry["budget"]:
                faults.append(f"{where}: {per:.2f} instructions per {entry['unit']}, the budget is {entry['budget']}")
        if name in HAND_WRITTEN.values():
            compared.add((architecture, name))
            if unequal := differences(instructions, by_hand.pop((architecture, name), [])):
                faults.append(f"{where}: not the instructions that it has without the device layer: {unequal}")
            else:
                line["by_hand"] = line["instructions"]
        lines.append(line)
    faults += [f"{BUDGETS.relative_to(ROOT)}: {entry['kernel']} fits no kernel"
               for i, entry in enumerate(entries) if i not in used]  # fmt: skip

    to_compare = {(architecture, name) for architecture, _ in found for name in HAND_WRITTEN.values()}
    faults += [f"{name}, {architecture}: was not compared with {HAND_WRITTEN_SOURCE}"
               for architecture, name in sorted((to_compare | by_hand.keys()) - compared)]  # fmt: skip

    for line in lines:
        per = f"{line['per_unit']:6.2f} per {line['unit']:7} of {line['budget']:5}" if "unit" in line else ""
        print(f"{line['architecture']:8} {line['kernel']:48} {line['registers']:4} registers {per}".rstrip())
        if "by_hand" in line:
            print(f"{'':8} {line['instructions']} instructions, of each opcode as many as without the device layer")
    if options.record:
        nvcc = next((line for line in output_of(shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc", "--version").splitlines()
                     if "release" in line), "").strip()  # fmt: skip
        head = {"kind": "run", "date": f"{datetime.date.today()}", "bench": "tests/kernels/machine_code.py",
                "compiler": nvcc, "library_bytes": size}  # fmt: skip
        RECORD.write_text("".join(json.dumps(line) + "\n" for line in [head] + lines))
    for fault in faults:
        print(f"error: {fault}", file=sys.stderr)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
