"""What the compiled kernels are, as tables: the instructions of their loops and the bytes that they have in flight.

The kernels are lines of `bench_plans`.
"""

import itertools

from kernel_records import find_record, four_bit_name, int8_name, record_of, tma_name
from markdown import head, row


def instructions(record, digits=2):
    return f"{record['per_unit']:.{digits}f}" if record else ""


def kib(count):
    return tenths_of_kib(count).removesuffix(".0")


def tenths_of_kib(count):
    return f"{count / 1024:.1f}"


def range_text(kernel):
    """The m that a kernel is for. Those of short runs take more rows in turn."""
    low, high = max(1, kernel["min_m"]), kernel["max_m"]
    if kernel.get("run", 64) != 64:
        return (f"{low} and more" if high == 64 else f"{low} to {high}") + f", runs of {kernel['run']}"
    return f"{low} to {high}"


def size_text(kernel):
    return f"{kernel['block_n']} x {kernel['block_k']}"


def four_bit(compiled, of_sm90, of_sm80):
    """bf16 and nested absmax."""
    text = head(["m", "n x k of a block and step", "x", "instructions, sm_80", "sm_90a", "registers, sm_90a", "blocks",
                 "codes in flight, KiB", "on average", "all"], (0, 1, 2))  # fmt: skip
    for kernel in (one for one in compiled if one["kernel"] == "FourBitMatmul"):
        for keeps_x in (True, False):
            name = four_bit_name(kernel, keeps_x)
            if not (record := find_record(name, of_sm90)):
                continue
            text += row(range_text(kernel), size_text(kernel), "kept" if keeps_x else "in turn",
                        instructions(find_record(name, of_sm80)), instructions(record), str(record["registers"]),
                        str(record["blocks"]), kib(record["bytes_in_flight"]),
                        tenths_of_kib(record["average_bytes_in_flight"]),
                        f"{record['all_bytes_in_flight'] / 1024:.0f}")  # fmt: skip
    for kernel in (one for one in compiled if "stages" in one):
        record = record_of(tma_name(kernel), of_sm90)
        what = "few rows, " + range_text(kernel) if "registers" not in kernel else f"wgmma, {kernel['max_m']} at a time"
        text += row(what, size_text(kernel), "TMA", "", instructions(record),
                    str(kernel.get("registers", record["registers"])), "1",
                    kib(kernel["stages"] * kernel["block_n"] * kernel["block_k"] / 2), "", "")  # fmt: skip
    return text


def int8(compiled, of_sm90, of_sm80):
    """bf16 and fp16; loads of 16 bytes, and of 8."""
    text = head(["m", "n x k of a block and step", "bytes of a load", "bf16: sm_80, sm_90a", "fp16: sm_80, sm_90a",
                 "registers, sm_90a: bf16, fp16", "blocks", "in flight, KiB", "on average, sm_90a"],
                (0, 1))  # fmt: skip
    kernels = [one for one in compiled if one["kernel"] == "Int8Matmul"]
    for load_bytes, kernel in itertools.product((16, 8), kernels):
        pairs = [[find_record(int8_name(kernel, half, load_bytes), records) for records in (of_sm80, of_sm90)]
                 for half in ("bf16", "f16")]  # fmt: skip
        new = [of_half[1] for of_half in pairs]
        text += row(range_text(kernel), size_text(kernel), str(load_bytes),
                    *(", ".join(instructions(record, 1) for record in pair) for pair in pairs),
                    both(new, "registers", str), both(new, "blocks", str), both(new, "bytes_in_flight", kib),
                    both(new, "average_bytes_in_flight", tenths_of_kib))  # fmt: skip
    return text


def both(records, key, form):
    """What two kernels have; once if they have the same."""
    return ", ".join(dict.fromkeys(form(record[key]) for record in records))
