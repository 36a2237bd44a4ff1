#!/usr/bin/env python3
"""What the machine code predicts for each product of the speed table, beside what was measured; and the results alone.

usage: predictions.py PLANS [--write | --check] PAGE...

PLANS is the program bench_plans. Prints the tables of the pages, docs/four-bit-matmul.md, docs/int8-matmul.md and
docs/kernels-benchmark.md; --write puts them between <!-- predictions: NAME --> and <!-- end -->, and --check fails if
that would change a page. Measured times are those of bench/results/check*.jsonl, tune*.jsonl and ceilings*.jsonl.
"""

import json
import pathlib
import re
import subprocess
import sys

import code_tables
import kernel_records
import results
from limits import READ, LaneLimits, bf16_time, library_time, weight_bytes
from markdown import head, row
from measured import GPUS, NOT_MEASURED, measured_lines
from tma_limits import TmaLimits

USUAL = ("28672x8192", "14336x4096", "4096x4096")
DECODE_M = (1, 8, 16, 32, 64)
GOALS = {"28672x8192": {1: "83 %", 8: "1.15 x m = 1", 16: "1.3 x m = 1", 32: "2.3 x cuBLASLt", 64: "1.5 x cuBLASLt"},
         "14336x4096": {1: "72 %", 8: "1.15 x m = 1", 16: "1.3 x m = 1", 32: "2.3 x cuBLASLt", 64: "1.5 x cuBLASLt"},
         "4096x4096": {1: "45 %", 32: "2.3 x cuBLASLt", 64: "1.5 x cuBLASLt"}}  # fmt: skip


def measured_name(plan):
    """Of nibble's line in the speed table."""
    kind = f"{plan['operation']}/bf16/nf4-nested"
    if plan["operation"] == "int8-matmul":
        kind = "matmul/bf16/int8"
    m = f"tokens{plan['tokens']}" if "tokens" in plan else f"m{plan['m']}"
    return f"{kind}/{plan['shape']}/{m}/nibble"


# -- Cells


def us(seconds):
    value = 1e6 * seconds
    return f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def between(low, high, form=us, unit=""):
    low, high = form(low), form(high)
    return f"{low}{unit}" if low == high else f"{low} to {high}{unit}"


def ratio(value):
    return f"{value:.2f}"


def shape_text(plan):
    """`q, k, v` in words, and the experts that are used."""
    if plan["operation"] == "shared-matmul":
        return "q, k and v: " + plan["shape"].replace("+", ", ").replace("x", " x ")
    if plan["operation"] == "expert-matmul":
        return "experts: " + plan["shape"].replace("x", " x ")
    n, k, block = re.fullmatch(r"(\d+)x(\d+)(b\d+)?", plan["shape"]).groups()
    return f"{n} x {k}" + (f", blocks of {block[1:]}" if block else "")


def m_text(plan):
    if "tokens" in plan:
        return f"{plan['tokens']} token{'s' if plan['tokens'] > 1 else ''}, {plan['used_experts']} experts"
    return str(plan["m"])


def is_for_wgmma(plan):
    return plan.get("tma", {}).get("kernel") == "FourBitMatmulSm90"


class Tables:
    def __init__(self, plans, kernels, measured):
        self.compiled = [plan for plan in plans if plan["operation"] == "kernel"]
        self.plans = plans = [plan for plan in plans if plan["operation"] not in ("kernel", "launch")]
        self.kernels, self.measured = kernels, measured
        decode = [plan for plan in plans if plan["m"] in DECODE_M or "tokens" in plan]
        order = {shape: i for i, shape in enumerate(USUAL)}
        by_shape = sorted(decode, key=lambda plan: order.get(plan["shape"], len(order)))
        self.int8 = [plan for plan in by_shape if plan["operation"] == "int8-matmul"]
        self.four_bit = [plan for plan in by_shape if plan["operation"] != "int8-matmul"]
        of_many = [plan for plan in plans if plan["operation"] == "matmul" and is_for_wgmma(plan)]
        self.many = sorted(of_many, key=lambda plan: order[plan["shape"]])

    def limits_of(self, plan):
        """Of the kernel that a device of 9.0 uses."""
        return (TmaLimits if plan.get("by_tma") else LaneLimits)(plan, self.kernels)

    def measured_text(self, gpu, *names):
        """The time of the first of the lines that there is."""
        lines = [self.measured[gpu, name] for name in names if (gpu, name) in self.measured]
        return f"{lines[0]['median']:.1f}" if lines else NOT_MEASURED

    def measured_and_compared(self, gpu, plan):
        """The time, and what the goals count."""
        name = measured_name(plan)
        line, text = self.measured.get((gpu, name), {}), self.measured_text(gpu, name)
        if (plan["m"] == 1 or "tokens" in plan) and "share_of_read" in line:
            return f"{text}: {100 * line['share_of_read']:.0f} %"
        if plan["m"] <= 16 and "times_m1" in line:
            return f"{text}: {ratio(line['times_m1'])} x m = 1"
        if plan["m"] > 16 and "cublaslt" in line.get("faster_than", {}):
            return f"{text}: {line['faster_than']['cublaslt']:.2f} x cuBLASLt"
        return text

    # -- Each limit alone

    def table_of_limits(self, plans):
        text = head(["n x k", "m", "tiles x splits, of blocks at once", "memory, H100", "H200", "in flight", "L2",
                     "shared memory", "instructions", "tensor cores", "estimate, H100", "H200"], (0,))  # fmt: skip
        shape = None
        for plan in plans:
            own = self.limits_of(plan)
            name = shape_text(plan) if shape_text(plan) != shape else ""
            shape = shape_text(plan)
            seconds = own.limits("H100")
            estimates = [us(time) if (time := own.estimate(gpu)) is not None else "" for gpu in ("H100", "H200")]
            text += row(name, m_text(plan), own.items_text,
                        us(seconds["memory"][0]), us(own.limits("H200")["memory"][0]),
                        *(between(*seconds[limit]) for limit in ("in flight", "L2", "shared memory", "instructions",
                                                                 "tensor cores")), *estimates)  # fmt: skip
        return text

    # -- Predictions

    def predicted(self, plan, gpu):
        """((seconds at least, why), (at most, why))"""
        return self.limits_of(plan).predicted(gpu)

    def compared(self, plan, gpu):
        """As the goals count: share of memory's bandwidth; times m = 1; times faster than a bf16 weight."""
        low, high = (time for time, _ in self.predicted(plan, gpu))
        if plan["m"] == 1 or "tokens" in plan:
            least = weight_bytes(plan) / READ[gpu]
            return between(100 * least / high, 100 * least / low, form="{:.0f}".format, unit=" %")
        if plan["m"] <= 16:
            first = next(one for one in self.plans if one["m"] == 1 and
                         (one["operation"], one["shape"]) == (plan["operation"], plan["shape"]))  # fmt: skip
            ends = [time / of_first for time, (of_first, _) in zip((low, high), self.predicted(first, gpu))]
            return between(*sorted(ends), form=ratio, unit=" x m = 1")
        bf16 = 2 * plan["n"] * plan["k"] / READ[gpu]
        return between(bf16 / high, bf16 / low, form="{:.1f}".format, unit=" x bf16")

    def table_of_predictions(self, plans, goals):
        names = ["n x k", "m", "goal", "H200, predicted, µs", "as the goal counts", "why, on the H200",
                 "H200, measured", "H100, predicted, µs", "as the goal counts", "H100, measured"]  # fmt: skip
        lefts = (0, 5)
        if not goals:
            names = [name.replace("as the goal counts", "compared") for name in names if name != "goal"]
            lefts = (0, 4)
        text, shape = head(names, lefts), None
        for plan in plans:
            cells = [shape_text(plan) if shape_text(plan) != shape else "", m_text(plan)]
            shape = shape_text(plan)
            if goals:
                cells.append(GOALS.get(plan["shape"], {}).get(plan["m"], "") if plan["operation"] == "matmul" else "")
            for gpu in GPUS:
                (low, why), (high, why_high) = self.predicted(plan, gpu)
                cells += [between(low, high), self.compared(plan, gpu)]
                if gpu == "H200":
                    cells.append(why if why == why_high else f"{why}; {why_high}")
                cells.append(self.measured_and_compared(gpu, plan))
            text += row(*cells)
        return text

    def seconds(self, kind, plan, gpu):
        """At least and at most, by a kernel whose lanes load the codes (LaneLimits), or that TMA feeds."""
        return [time for time, _ in kind(plan, self.kernels).predicted(gpu)]

    def many_rows(self):
        """The kernel for mma.sync and the one for wgmma, for the m that bench_tune measures, on an H200."""
        text = head(["n x k", "m", "wgmma: tile of m x n, items x splits", "wgmma, predicted, µs",
                     "mma.sync, predicted, µs", "bf16, µs", "the plan takes", "wgmma, its estimate",
                     "wgmma, measured", "mma.sync, measured"], (0, 2, 6))  # fmt: skip
        shape, gpu = None, "H200"
        for plan in self.many:
            if plan["m"] > 256:
                continue
            wgmma = plan["tma"]
            own = "wgmma" if plan["by_tma"] else "mma"  # in the speed table
            measured = [self.measured_text(gpu, f"many-rows/{plan['shape']}/m{plan['m']}/{kernel}",
                                           *[measured_name(plan)] * (kernel == own))
                        for kernel in ("wgmma", "mma")]  # fmt: skip
            text += row(shape_text(plan) if plan["shape"] != shape else "", str(plan["m"]),
                        f"{wgmma['max_m']} x {wgmma['tile_n']}, {wgmma['items']} x {wgmma['splits']}",
                        *(between(*self.seconds(kind, plan, gpu)) for kind in (TmaLimits, LaneLimits)),
                        us(bf16_time(plan, gpu)), {"mma": "mma.sync"}.get(own, own), us(wgmma["seconds"]),
                        *measured)  # fmt: skip
            shape = plan["shape"]
        return text

    def library(self):
        """From 512 rows on, on an H100."""
        text = head(["n x k", "m", "mma.sync, predicted, µs", "wgmma, predicted, µs", "library, predicted, µs",
                     "measured, wgmma", "measured, library"], (0,))  # fmt: skip
        shape = None
        for plan in self.many:
            if not plan["by_library"]:
                continue
            name = f"library/bf16/nf4-nested/{plan['shape']}/m{plan['m']}"
            text += row(shape_text(plan) if plan["shape"] != shape else "", str(plan["m"]),
                        *(between(*self.seconds(kind, plan, "H100")) for kind in (LaneLimits, TmaLimits)),
                        us(library_time(plan, "H100")),
                        *(self.measured_text("H100", f"{name}/nibble-{way}")
                          for way in ("fused", "library")))  # fmt: skip
            shape = plan["shape"]
        return text

    def all(self):
        code = self.compiled, self.kernels, kernel_records.records("sm_80")
        return {
            "four_bit_code": lambda: code_tables.four_bit(*code),
            "int8_code": lambda: code_tables.int8(*code),
            "four_bit_limits": lambda: self.table_of_limits(self.four_bit),
            "four_bit": lambda: self.table_of_predictions(self.four_bit, goals=True),
            "many_rows": self.many_rows,
            "library": self.library,
            "int8_limits": lambda: self.table_of_limits(self.int8),
            "int8": lambda: self.table_of_predictions(self.int8, goals=False),
            "results": lambda: results.table(self.measured),
        }


def filled(page, tables):
    """The page with every table as it is predicted."""
    return re.sub(r"(<!-- predictions: (\w+) -->\n).*?(<!-- end -->)",
                  lambda match: match[1] + tables[match[2]]() + match[3], page, flags=re.S)  # fmt: skip


def main():
    options = [one for one in sys.argv[1:] if one.startswith("--")]
    names = [one for one in sys.argv[1:] if not one.startswith("--")]
    if not names or len(options) > 1 or not {*options} <= {"--write", "--check"} or bool(options) != (len(names) > 1):
        sys.exit(__doc__)
    output = subprocess.run([names[0]], capture_output=True, text=True, check=True).stdout
    plans = [json.loads(line) for line in output.splitlines()]
    tables = Tables(plans, kernel_records.records(), measured_lines()).all()
    if not options:
        for name, table in tables.items():
            print(f"{name}\n\n{table()}")
    for path in map(pathlib.Path, names[1:]):
        old = path.read_text(encoding="utf-8")
        if not (new := filled(old, tables)).count("<!-- predictions: "):
            sys.exit(f"error: {path} has no table of predictions")
        if options == ["--write"]:
            path.write_text(new, encoding="utf-8")
        elif new != old:
            sys.exit(f"error: {path} is not what the machine code predicts: bench/kernels/predict/predictions.py "
                     f"{names[0]} --write {path}")  # fmt: skip


if __name__ == "__main__":
    main()
