#!/usr/bin/env python3
"""Nsight Compute on one cold launch, `bench_kernels --profile CASE`.

    kernels_ncu.py CASE --out FOLDER --scratch FOLDER

Prints its details page, then a line of JSON with the metrics that matter, and appends the machine code, with the
samples of each instruction's stalls, to FOLDER/tune_ncu_source.csv. 77: there is no GPU. 78: there is no ncu.
"""

import argparse
import csv
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


def page(ncu, report, *options):
    return subprocess.run([ncu, "--import", report, *options], capture_output=True, text=True, check=False).stdout


def append(path, text):
    with open(path, "a", encoding="utf-8") as file:
        if file.tell() + len(text) <= MAX_SOURCE_BYTES:
            file.write(text)


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
        append(source, f"{options.case}: no ncu\n")
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
    append(source, f"{options.case}\n" + page(ncu, report, "--page", "source", "--csv", "--print-source", "sass"))
    return 0 if raw else 1


if __name__ == "__main__":
    sys.exit(main())
