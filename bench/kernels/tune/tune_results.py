"""What bench_tune measured: reads the lines of bench/results/tune*.jsonl (docs/kernels-benchmark.md)."""

import collections
import dataclasses
import json
import math
import re

Tile = collections.namedtuple("Tile", "m_tiles n_warps k_warps n_tiles run", defaults=(64,))
Int8Tile = collections.namedtuple("Int8Tile", "m_tiles n_warps k_warps n_tiles groups")
Loop = collections.namedtuple("Loop", "barrier loads_first prefetched_steps")


@dataclasses.dataclass
class Line:
    """A time of one variant, in microseconds."""

    run: "Run"
    shape: str
    n: int
    k: int
    m: int
    stage: str
    change: str
    tile: Tile  # or an Int8Tile; None of a line of many rows
    loop: Loop  # None of int8
    keeps_x: bool
    splits: int
    overlaps: bool
    is_resident: bool
    is_default: bool
    time: float

    @property
    def case(self):
        return self.run, self.shape, self.m, self.stage == "rows", self.is_int8

    @property
    def is_int8(self):
        return isinstance(self.tile, Int8Tile)


@dataclasses.dataclass(frozen=True)
class Run:
    file: str
    gpu: str
    capability: int
    multiprocessors: int
    date: str
    bytes_per_us: float  # of plain reads; NaN where only the kernels for many rows were compared

    @property
    def text(self):
        return f"bench/results/{self.file}, {self.gpu}, {self.date}"


def n_and_k(shape):
    """Of `NxK`, or of `NxKbBLOCKSIZE`."""
    return map(int, re.fullmatch(r"(\d+)x(\d+)(?:b\d+)?", shape).groups())


def line_of(run, line):
    v = line["variant"]
    n, k = n_and_k(line["shape"])
    return Line(run, line["shape"], n, k, line["m"], line["stage"], line["change"], Tile(*(v[name] for name in Tile._fields)),
                Loop(*(v[name] for name in Loop._fields)), v["keeps_x"], v["splits"], v["overlaps"], v["is_resident"],
                line["default"], line["median"])  # fmt: skip


def line_of_int8(run, line):
    v = line["int8_variant"]
    n, k = n_and_k(line["shape"])
    return Line(run, line["shape"], n, k, line["m"], "tiles", "none", Int8Tile(*(v[name] for name in Int8Tile._fields)), None,
                False, v["splits"], False, True, line["default"], line["median"])  # fmt: skip


def line_of_rows(run, line):
    """Of the comparison of kernels for many rows of x: the change is the kernel, mma or wgmma."""
    n, k = n_and_k(line["shape"])
    return Line(run, line["shape"], n, k, line["m"], "rows", line["kernel"], None, None, False, line["splits"], False, True,
                line["default"], line["median"])  # fmt: skip


def read_results(paths):
    """The lines of all files, each with the device that it is from."""
    results = []
    for path in paths:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
        lines = [line for line in lines if line.get("step", "variants").split("/")[0] in ("variants", "many-rows")]
        device = next((line for line in lines if line.get("kind") == "device"), None)
        read = next((line for line in lines if line.get("name") == "read/kernel"), None)
        if device is None:
            continue
        run = Run(path.name, device["gpu"], device["capability"], device["multiprocessors"], device["date"],
                  1e3 * read["gb_s"] if read else math.nan)  # fmt: skip
        if read:  # the comparison of kernels for many rows needs no bandwidth
            results += [line_of(run, line) for line in lines if "variant" in line and "median" in line]
            results += [line_of_int8(run, line) for line in lines if "int8_variant" in line and "median" in line]
        results += [line_of_rows(run, line) for line in lines if "kernel" in line and "median" in line]
    return results


def texts_of(lines):
    return sorted({line.run.text for line in lines})


def by(lines, key):
    groups = collections.defaultdict(list)
    for line in lines:
        groups[key(line)].append(line)
    return groups
