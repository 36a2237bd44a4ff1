#!/usr/bin/env python3
"""Examines the machine code of libnibble_cuda.so, on any machine: no GPU is needed.

    tests/kernels/machine_code/run.py [--build build/release] [--record]
    tests/kernels/machine_code/run.py --test     the tests of the examination itself

Fails if a kernel keeps something in local memory (spilled registers, arrays that are indexed), if ptxas reported a loss
of performance (wgmma that it serializes), if barriers are what limits the blocks of a kernel on a multiprocessor, if
the library has 64 MB or more, if a kernel does not keep to its entry in kernels/instruction_budgets.json, or if a
kernel that tests/kernels/hand_written.cu has without the device layer does not have as many instructions of each
opcode. --record writes what was found to bench/results/kernel_instructions.jsonl.

An entry says which loads bring the weights. From their bytes follow the weights of a step, and from these how many
matrix products or stores there have to be (budgets.py). It limits the instructions per weight on the hot way (way.py),
says where the loads of the next step have to stand (order.py), and how many bytes a multiprocessor has to have in
flight (in_flight.py, resources.py).

cuobjdump and nvdisasm are taken from PATH, from beside nvcc, from an installed package `triton`, or from one that is
installed into build/cuda_tools for this.
"""

import argparse
import datetime
import json
import re
import shutil
import sys
import unittest
from pathlib import Path

import budgets
import by_hand
import sass
from compilation import from_logs
from resources import resources_of
from tools import ROOT, cuobjdump, output_of, short_names, tools

RECORD = ROOT / "bench" / "results" / "kernel_instructions.jsonl"
LARGEST_LIBRARY = 64 << 20


def kernels(library, folder, compiled):
    """The kernels of a library by name and architecture, and those of which something is not known."""
    codes, resources = sass.parsed(cuobjdump(folder, "-sass", library)), resources_of(library, folder)
    names = short_names(sorted({symbol for _, symbol in codes}))
    found, faults = [], []
    for (architecture, symbol), instructions in codes.items():
        if (architecture, symbol) in compiled and (architecture, symbol) in resources:
            found.append(budgets.Kernel(names[symbol], architecture, instructions, resources[architecture, symbol],
                                        compiled[architecture, symbol]))  # fmt: skip
        else:
            faults.append(f"{names[symbol]}, {architecture}: no log says how it was compiled")
    return sorted(found, key=lambda kernel: (kernel.name, kernel.architecture)), faults


def examined(found, entries):
    """(a line to record for each kernel, what is wrong)."""
    lines, faults, used = [], [], set()
    for kernel in found:
        where = f"{kernel.name}, {kernel.architecture}"
        fitting = [i for i, entry in enumerate(entries) if re.fullmatch(entry["kernel"], kernel.name)]
        used.update(fitting)
        if len(fitting) != 1:
            faults.append(f"{where}: fits {len(fitting)} entries of {budgets.FILE.relative_to(ROOT)}, must fit one")
            continue
        line, of_kernel = budgets.check(kernel, entries[fitting[0]])
        lines.append(line)
        faults += [f"{where}: {fault}" for fault in of_kernel]
    faults += [f"{budgets.FILE.relative_to(ROOT)}: {entry['kernel']} fits no kernel"
               for i, entry in enumerate(entries) if i not in used]  # fmt: skip
    return lines, faults


def compare_with_hand_written(found, lines, written):
    """Notes in the lines which kernels equal those written by hand; returns where they do not."""
    faults, compared = [], set()
    codes = {(kernel.architecture, kernel.name): kernel.instructions for kernel in found}
    to_compare = {(architecture, name) for architecture, _ in codes for name in by_hand.KERNELS.values()}
    for line in lines:
        key = (line["architecture"], line["kernel"])
        if key in to_compare:
            compared.add(key)
            if unequal := by_hand.differences(codes[key], written.get(key, [])):
                faults.append(f"{key[1]}, {key[0]}: not the instructions that it has without the layer: {unequal}")
            else:
                line["by_hand"] = line["instructions"]
    return faults + [f"{name}, {architecture}: was not compared with {by_hand.SOURCE}"
                     for architecture, name in sorted((to_compare | written.keys()) - compared)]  # fmt: skip


def show(lines):
    """Prints a row for each kernel."""
    for line in lines:
        row = f"{line['architecture']:7} {line['kernel']:43} {line['registers']:4} registers"
        row += f" {line['shared_bytes']:5} B shared {line['stack_bytes']} stack {line['spilled_bytes']} spilled"
        if "per_unit" in line:
            row += f" {line['per_unit']:6.2f} per {line['unit']} of {line['budget']:4}"
        if "blocks" in line:
            row += f", {line['blocks']:2} blocks, {line['bytes_in_flight'] / 1024:5.1f} KB in flight"
            row += f" ({line['all_bytes_in_flight'] / 1024:.1f} with all loads)"
        if "average_bytes_in_flight" in line:
            row += f", {line['average_bytes_in_flight'] / 1024:.1f} on average"
        if "l2_prefetches" in line:
            row += f", {line['l2_prefetches']} L2 prefetches"
        print(row)
        if "by_hand" in line:
            print(f"{'':7} {line['instructions']} instructions, of each opcode as many as without the device layer")


def record(lines, size):
    version = output_of(shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc", "--version").splitlines()
    nvcc = next((line for line in version if "release" in line), "").strip()
    head = {"kind": "run", "date": f"{datetime.date.today()}", "bench": "tests/kernels/machine_code/run.py",
            "compiler": nvcc, "library_bytes": size}  # fmt: skip
    RECORD.write_text("".join(json.dumps(line) + "\n" for line in [head] + lines))


def test():
    """Runs the tests beside this file."""
    suite = unittest.defaultTestLoader.discover(str(Path(__file__).parent), pattern="*_test.py")
    return 0 if unittest.TextTestRunner(verbosity=0).run(suite).wasSuccessful() else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release", help="the build directory")
    parser.add_argument("--record", action="store_true", help=f"write {RECORD.relative_to(ROOT)}")
    parser.add_argument("--test", action="store_true", help="test the examination itself")
    options = parser.parse_args()
    if options.test:
        return test()

    library = options.build / "kernels" / "libnibble_cuda.so"
    if not library.is_file():
        sys.exit(f"error: {library} is not there: build the target nibble_cuda")
    compiled, faults = from_logs(options.build)
    size = library.stat().st_size
    if size >= LARGEST_LIBRARY:
        faults.append(f"{library.name} has {size} bytes, must be below {LARGEST_LIBRARY}")

    folder = tools()
    found, unknown = kernels(library, folder, compiled)
    if not found:
        sys.exit(f"error: no machine code in {library}")
    entries, of_form = budgets.entries()
    if of_form:
        sys.exit("\n".join(f"error: {budgets.FILE.relative_to(ROOT)}: {fault}" for fault in of_form))
    lines, of_kernels = examined(found, entries)
    unequal = compare_with_hand_written(found, lines, by_hand.hand_written(options.build, folder))
    show(lines)
    if options.record:
        record(lines, size)
    for fault in faults + unknown + of_kernels + unequal:
        print(f"error: {fault}", file=sys.stderr)
    return 1 if faults or unknown or of_kernels or unequal else 0


if __name__ == "__main__":
    sys.exit(main())
