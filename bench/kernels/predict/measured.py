"""What was measured on a GPU: bench/results/check*.jsonl, tune*.jsonl, ceilings*.jsonl (docs/kernels-benchmark.md)."""

import json
import pathlib
import re

RESULTS = pathlib.Path(__file__).resolve().parents[3] / "bench" / "results"
GPUS = ("H200", "H100")
NOT_MEASURED = "not measured"


def measured_lines(folder=RESULTS):
    """{(GPU, name): line}, the fastest of several. Of tune*.jsonl, the kernels for many rows: a name for all splits."""
    lines = {}
    for path in sorted(path for part in ("check", "tune", "ceilings") for path in folder.glob(f"{part}*.jsonl")):
        gpu, has_variants = None, path.name.startswith("tune")
        for line in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
            name = line.get("name", "")
            if line.get("kind") == "device":
                gpu = next((one for one in GPUS if one in line["gpu"]), None)
            elif gpu and name and "error" not in line and (name.startswith("many-rows/") or not has_variants):
                key = gpu, re.sub(r"^(many-rows/[^/]*/[^/]*/(mma|wgmma))\d.*$", r"\1", name)
                if key not in lines or line.get("median", 0) < lines[key].get("median", 0):
                    lines[key] = line
    return lines


def read_rates(lines):
    """{GPU: bytes per second} of the plain kernel that reads 1 GiB."""
    return {gpu: 1e9 * line["gb_s"] for (gpu, name), line in lines.items() if name == "read/kernel"}
