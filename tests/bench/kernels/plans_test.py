#!/usr/bin/env python3
"""Checks that the library's plan for the kernels that TMA feeds and its mirror in tune_sm90.py, with which the costs of
the plan are fitted, choose the same launches.

usage: tests/bench/kernels/plans_test.py PLANS     the program bench_plans
"""

import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "bench" / "kernels" / "tune"))

from tune_plan import plan_of  # noqa: E402
from tune_results import read_results  # noqa: E402
from tune_sm90 import few_rows_config, many_rows_config  # noqa: E402


def main():
    """Prints the launches that differ; the exit code says whether there are any."""
    plan = plan_of(read_results(sorted((ROOT / "bench" / "results").glob("tune*.jsonl")))).sm90
    output = subprocess.run([sys.argv[1]], capture_output=True, text=True, check=True).stdout
    launches = [line for line in map(json.loads, output.splitlines()) if line["operation"] in ("launch", "matmul")]
    launches = [line for line in launches if "tma" in line]
    different = 0
    for line in launches:
        config = few_rows_config if line["tma"]["kernel"] == "FourBitMatmulFewRows" else many_rows_config
        mirrored = config(plan, line["m"], line["n"], line["k"])
        tile = line["tma"]["tile"][: len(mirrored.tile)]
        found = (*tile, line["tma"]["tile_n"], line["tma"]["splits"], round(1e9 * line["tma"]["seconds"]))
        if found != (*mirrored.tile, *mirrored[1:]):
            different += 1
            print(f"{line['n']} x {line['k']}, {line['m']} rows: {found}, mirrored {mirrored}")
    if len(launches) < 900:
        sys.exit(f"only {len(launches)} launches were compared")
    sys.exit(different > 0)


if __name__ == "__main__":
    main()
