"""What is known of the compiled kernels, by their names: bench/results/kernel_instructions.jsonl.

A kernel is named by a line of `bench_plans`: a plan that takes it, or the kernel itself.
"""

import json
import pathlib
import re

RECORD = pathlib.Path(__file__).resolve().parents[3] / "bench" / "results" / "kernel_instructions.jsonl"


def records(architecture="sm_90a", path=RECORD):
    """The lines of the kernels by their names."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {line["kernel"]: line for line in lines if line.get("architecture") == architecture}


def four_bit_name(line, keeps_x):
    """Of FourBitMatmul for bf16 and nested absmax, as a regular expression."""
    return (rf"FourBitMatmul<bf16, true, FourBitMatmulTile{{{members(line)}, .*, {line['run']}u}}, "
            rf"{str(keeps_x).lower()}>")  # fmt: skip


def int8_name(line, half, load_bytes):
    """Of Int8Matmul."""
    return rf"Int8Matmul<{half}, Int8MatmulTile{{{members(line)}, .*, {load_bytes}u}}>"


def tma_name(line):
    """Of FourBitMatmulFewRows or FourBitMatmulSm90, for bf16 and nested absmax."""
    tile = ", ".join(f"{member}u" for member in line["tile"])
    return rf"{line['kernel']}<bf16, true, {line['kernel']}Tile{{{tile}}}>"


def members(line):
    return ", ".join(f"{line[name]}u" for name in ("m_tiles", "n_warps", "k_warps", "n_tiles"))


def find_record(name, of_kernels):
    """The record of the kernel with such a name, or None. Raises ValueError if there are several."""
    found = [record for kernel, record in of_kernels.items() if re.fullmatch(name, kernel)]
    if len(found) > 1:
        raise ValueError(f"{len(found)} kernels are called {name}")
    return found[0] if found else None


def record_of(name, of_kernels):
    """The same; raises ValueError if there is none."""
    if record := find_record(name, of_kernels):
        return record
    raise ValueError(f"the record has no kernel {name}")
