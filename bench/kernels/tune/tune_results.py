"""What bench_tune measured: reads the lines of bench/results/tune*.jsonl (docs/kernels-benchmark.md)."""

import collections
import dataclasses
import json
import re

Tile = collections.namedtuple("Tile", "m_tiles n_warps k_warps n_tiles run", defaults=(64,))
Int8Tile = collections.namedtuple("Int8Tile", "m_tiles n_warps k_warps n_tiles groups")
Loop = collections.namedtuple("Loop", "barrier loads_first prefetched_steps")
FewRowsTile = collections.namedtuple("FewRowsTile", "m_tiles n_warps k_warps")
ManyRowsTile = collections.namedtuple("ManyRowsTile", "rows n_warpgroups k_warpgroups")
STEPS = ("variants", "many-rows", "few-rows")  # of bench/kernels.sh


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
    tile: Tile  # or another kernel's; None of a line of many rows by mma.sync
    loop: Loop  # of a Tile
    keeps_x: bool
    splits: int
    overlaps: bool
    is_resident: bool
    is_default: bool
    time: float
    tile_n: int = 0  # of the two kernels that TMA feeds

    @property
    def case(self):
        stage = self.stage if self.stage in ("rows", "few-rows") else "variants"
        return self.run, self.shape, self.m, stage, self.is_int8

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
    bytes_per_us: float  # of plain reads; None where only kernels that TMA feeds were measured
    commit: str  # whose kernels were measured, or None

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
    """Of the comparison of kernels for many rows of x: the change is the kernel, mma or wgmma. Of wgmma, the tile and
    tile_n are in the name; a `v` and a digit there are versions of the kernel."""
    n, k = n_and_k(line["shape"])
    found = re.search(r"/wgmma(\d+)x(\d+)x(\d+)(?:v\d)?/n(\d+)/", line["name"])
    *tile, tile_n = map(int, found.groups()) if found else (0,)
    tile = ManyRowsTile(*tile) if found else None
    return Line(run, line["shape"], n, k, line["m"], "rows", line["kernel"], tile, None, False, line["splits"], False,
                True, line["default"], line["median"], tile_n)  # fmt: skip


def line_of_few_rows(run, line):
    """Of the kernel for few rows of x that TMA feeds. The tile is in the name."""
    n, k = n_and_k(line["shape"])
    if not (found := re.search(r"/tile(\d+)x(\d+)x(\d+)/", line["name"])):
        raise ValueError(f"{run.file}: {line['name']} names no tile")
    tile = FewRowsTile(*map(int, found.groups()))
    return Line(run, line["shape"], n, k, line["m"], "few-rows", "none", tile, None, False, line["splits"], False, True,
                line["default"], line["median"], line["tile_n"])  # fmt: skip


def read_results(paths):
    """The lines of all files, each with the device that it is from."""
    results = []
    for path in paths:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
        lines = [line for line in lines if line.get("step", "variants").split("/")[0] in STEPS]
        read = next((line for line in lines if line.get("name") == "read/kernel"), None)
        commit = run = None
        for line in lines:
            if line.get("kind") == "run":
                commit = line.get("commit")
            elif line.get("kind") == "device":
                run = Run(path.name, line["gpu"], line["capability"], line["multiprocessors"], line["date"],
                          1e3 * read["gb_s"] if read else None, commit)  # fmt: skip
            elif run and "median" in line:
                results += lines_of(run, line)
    return results


def lines_of(run, line):
    """None or one. The variants need a bandwidth; the kernels that TMA feeds do not."""
    if "kernel" in line:
        yield line_of_rows(run, line)
    elif line["name"].startswith("few-rows/"):
        yield line_of_few_rows(run, line)
    elif run.bytes_per_us and "variant" in line:
        yield line_of(run, line)
    elif run.bytes_per_us and "int8_variant" in line:
        yield line_of_int8(run, line)


def texts_of(lines):
    return sorted({line.run.text for line in lines})


def by(lines, key):
    groups = collections.defaultdict(list)
    for line in lines:
        groups[key(line)].append(line)
    return groups
