"""Kernels of the library beside the same that hand_written.cu has without the device layer."""

import collections
import subprocess
import sys

import sass
from tools import cuobjdump, short_names

SOURCE = "hand_written.cu"
KERNELS = {"hand_written::four_bit_dequantize": "FourBitDequantize<bf16, 0>"}


def hand_written(build, folder):
    """{(architecture, name of the layer's kernel): instructions} of what is written without the layer."""
    command = ["cmake", "--build", build, "--target", "nibble_hand_written"]
    built = subprocess.run(command, capture_output=True, text=True)
    if built.returncode != 0:
        sys.exit(f"error: {SOURCE} does not build:\n{built.stdout}{built.stderr}")
    objects = list((build / "kernels").rglob(f"{SOURCE}.o"))
    if len(objects) != 1:
        sys.exit(f"error: {len(objects)} objects of {SOURCE} in {build / 'kernels'}, must be one")
    found = sass.parsed(cuobjdump(folder, "-sass", objects[0]))
    names = short_names(sorted({symbol for _, symbol in found}))
    return {(architecture, KERNELS.get(names[symbol].split("(")[0], names[symbol])): instructions
            for (architecture, symbol), instructions in found.items()}  # fmt: skip


def differences(kernel, by_hand):
    """Where two kernels have unequal numbers of instructions: "IMAD 3, by hand 4"."""
    if not kernel or not by_hand:
        return f"{len(kernel)} instructions, by hand {len(by_hand)}"
    counts = [collections.Counter(instruction.opcode for instruction in code) for code in (kernel, by_hand)]
    return ", ".join(f"{opcode} {counts[0][opcode]}, by hand {counts[1][opcode]}"
                     for opcode in sorted(counts[0].keys() | counts[1].keys())
                     if counts[0][opcode] != counts[1][opcode])  # fmt: skip
