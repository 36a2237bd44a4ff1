#!/usr/bin/env python3
"""Nsight Compute on one cold launch, `bench_kernels --profile CASE`.

    kernels_ncu.py CASE --out FOLDER --scratch FOLDER

Prints its details page, then a line of JSON with the metrics that matter, and appends the machine code, with the
samples of each instruction's stalls, to FOLDER/tune_ncu_source.csv. 77: there is no GPU. 78: there is no ncu.
"""

import argparse
import csv
import io
import json
import pathlib
import re
import shutil
import subprocess
import sys

PROGRAM = pathlib.Path(__file__).resolve().parent / "bin" / "bench_kernels"
MAX_SOURCE_BYTES = 6 << 20
KEPT = re.compile(
    r"gpu__time_duration\.sum|dram__(bytes|throughput)|lts__t_sectors_op_read|launch__(registers|occupancy|shared|waves|"
    r"grid_size|block_size)|sm__(throughput|warps_active|inst_executed|cycles)|smsp__average_warps_issue_stalled|"
    r"smsp__(issue_active|inst_executed)|l1tex__data_bank_conflicts"
)
KEPT_OF_SOURCE = re.compile(r"stall|sampl|^(warp )?instructions executed$", re.IGNORECASE)
NOT_ISSUED = re.compile(r"not.issued", re.IGNORECASE)


def metrics(text):
    """{metric: number} of the page `raw` as CSV: names, units, then a line for the launch."""
    rows = [row for row in csv.reader(text.splitlines()) if len(row) > 10]
    if len(rows) < 3:
        return {}
    found = {}
    for name, unit, value in zip(*rows[:3]):
        if not KEPT.match(name):
            continue
        try:
            found[f"{name} [{unit}]" if unit else name] = float(value.replace(",", ""))
        except ValueError:
            continue
    return found


def source_of(text):
    """Of the page `source` as CSV, the columns that say something: the instructions, the samples of their stalls, and
    how often they ran, without those that are zero throughout. The whole page has megabytes for each case."""
    rows = list(csv.reader(text.splitlines()))
    head = next((i for i, row in enumerate(rows) if "Source" in row), None)
    if head is None:
        return text
    names, below = rows[head], [row for row in rows[head + 1 :] if len(row) == len(rows[head])]
    kept = [i for i, name in enumerate(names) if name == "Source" or (KEPT_OF_SOURCE.search(name) and
            not NOT_ISSUED.search(name) and any(row[i] not in ("", "0") for row in below))]  # fmt: skip
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([row[i] for i in kept] for row in [names, *below])
    return "".join(f"{','.join(row)}\n" for row in rows[:head]) + out.getvalue()


def page(ncu, report, *options):
    return subprocess.run([ncu, "--import", report, *options], capture_output=True, text=True, check=False).stdout


def append(path, case, text):
    """The case and its text, or that there was no room for it."""
    with open(path, "a", encoding="utf-8") as file:
        if file.tell() + len(text) > MAX_SOURCE_BYTES:
            text = f"left out: {len(text)} characters\n"
        file.write(f"{case}\n{text}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("case")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--scratch", type=pathlib.Path, required=True)
    options = parser.parse_args()
    launch = [PROGRAM, "--profile", options.case]
    source = options.out / "tune_ncu_source.csv"
    ncu = shutil.which("ncu")
    if ncu is None:
        append(source, options.case, "no ncu\n")
        status = subprocess.run(launch, check=False).returncode
        print("there is no ncu")
        return status or 78
    report = options.scratch / (re.sub(r"\W", "_", options.case) + ".ncu-rep")
    collect = [ncu, "-f", "-o", report, "--set", "full", "--clock-control", "none", "--profile-from-start", "off"]
    status = subprocess.run([*collect, *launch], check=False).returncode
    if status != 0 or not report.is_file():
        return status or 1
    print(page(ncu, report, "--page", "details", "--print-details", "all"), flush=True)
    raw = metrics(page(ncu, report, "--page", "raw", "--csv", "--print-units", "base"))
    print(json.dumps({"name": f"ncu/{options.case}", "metrics": raw}), flush=True)
    append(source, options.case, source_of(page(ncu, report, "--page", "source", "--csv", "--print-source", "sass")))
    return 0 if raw else 1


if __name__ == "__main__":
    sys.exit(main())
