"""What every benchmark here needs: the machine in words, timed processes, medians, and results as JSON lines.

A file of results starts with one line of kind "run" (machine, compiler, flags, versions); each further line is one
measurement: a name, a unit, all samples, their median, and what else there is to say.
"""

import json
import mmap
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
BUILD = ROOT / "build" / "release"
PEERS = ROOT / "build" / "peers" / "bin" / "python"  # python/peers.sh makes it
LLAMA = ROOT / "build" / "peers" / "llama"  # bench/peers/llama.sh makes it
QUANTIZERS = ROOT / "build" / "quantizers"  # bench/peers/quantizers.sh makes it
PEER_PACKAGES = ("torch", "bitsandbytes", "safetensors", "transformers", "hqq", "llmcompressor")


def add_options(parser, name):
    """The options that all benchmarks share."""
    parser.add_argument("--build", type=pathlib.Path, default=BUILD, help="the build directory")
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS / f"{name}.jsonl", help="the results")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved samples of each measurement [5]")


def first_match(pattern, path, default="unknown"):
    try:
        found = re.search(pattern, pathlib.Path(path).read_text(), re.M)
    except OSError:
        return default
    return found.group(1).strip() if found else default


def output_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def file_system(directory):
    """The type of the file system that holds a directory (the longest mount point that leads to it), and whether it
    tells the disk which blocks are free."""
    path = str(pathlib.Path(directory).resolve())
    best = ("", "unknown")
    for line in pathlib.Path("/proc/mounts").read_text().splitlines():
        _, mount, kind, options = line.split()[:4]
        if (path + "/").startswith(mount.rstrip("/") + "/"):
            kind += " (discard)" if "discard" in options.split(",") else ""
            best = max(best, (mount, kind), key=lambda entry: len(entry[0]))
    return best[1]


def machine(build=BUILD):
    if os.getloadavg()[0] > 0.5:
        print(f"warning: the machine is busy (load {os.getloadavg()[0]:.1f}): figures will be off", file=sys.stderr)
    return {
        "cpu": first_match(r"^model name\s*: (.*)", "/proc/cpuinfo"),
        "cores": len(os.sched_getaffinity(0)),
        "simd": output_of(build / "bench" / "bench_stages", "simd"),
        "l3": first_match(r"(.*)", "/sys/devices/system/cpu/cpu0/cache/index3/size"),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "huge_pages": first_match(r"\[(\w+)\]", "/sys/kernel/mm/transparent_hugepage/enabled"),
        "kernel": os.uname().release.split("-")[0],
        "load_average": os.getloadavg()[0],
    }


def host(bench):
    """The run line of an example, which needs no benchmark to be built."""
    return {
        "kind": "run",
        "date": time.strftime("%Y-%m-%d"),
        "bench": bench,
        "cpu": first_match(r"^model name\s*: (.*)", "/proc/cpuinfo"),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": os.uname().release.split("-")[0],
        "load_average": os.getloadavg()[0],
    }


def compiler(build=BUILD):
    """The compiler's first line, and the flags of a file of the library that is always compiled alone."""
    commands = json.loads((build / "compile_commands.json").read_text())
    words = next(entry["command"] for entry in commands if entry["file"].endswith("/quant/errors/metrics.cpp")).split()
    program = next(word for word in words if re.search(r"(\+\+|g\+\+|clang)[-0-9.]*$", word))
    return {
        "compiler": output_of(program, "--version").splitlines()[0],
        "flags": " ".join(word for word in words if re.match(r"-(O|f|m|std|DNDEBUG|D_)", word)),
    }


def peer_versions(python, *folders):
    """Versions of the peers' packages, as their interpreter finds them, in further folders, too."""
    program = f"import json, sys, importlib.metadata as m\nsys.path += {[*map(str, folders)]}\nv = {{}}\n" + "".join(
        f"try: v[{name!r}] = m.version({name!r})\nexcept m.PackageNotFoundError: pass\n" for name in PEER_PACKAGES
    )
    return json.loads(output_of(python, "-c", program + "print(json.dumps(v))"))


def disk_rates(directory, size=1 << 30, block=8 << 20):
    """Bytes per second to and from the disk, without the page cache; nothing where that is not offered (tmpfs)."""
    path = pathlib.Path(directory) / "disk_rates"
    buffer = mmap.mmap(-1, block)  # starts on a page, as O_DIRECT asks
    buffer.write(os.urandom(block))
    try:
        rates = {}
        for name, flags in (("write", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), ("read", os.O_RDONLY)):
            file = os.open(path, flags | os.O_DIRECT)
            start = time.perf_counter()
            for offset in range(0, size, block):
                os.pwritev(file, [buffer], offset) if name == "write" else os.preadv(file, [buffer], offset)
            if name == "write":
                os.fdatasync(file)
            rates[f"disk_{name}_gb_s"] = size / (time.perf_counter() - start) / 1e9
            os.close(file)
        return rates
    except OSError:
        return {}
    finally:
        path.unlink(missing_ok=True)


def run(command):
    """What a process prints as one JSON object. Its errors end the benchmark."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"error: {pathlib.Path(command[0]).name} ends with {done.returncode}: {done.stderr}")
    return json.loads(done.stdout)


def stages(build, *arguments):
    """bench_stages: a stage alone, or `time`, a process with wall, user and system seconds and peak memory."""
    return run([build / "bench" / "bench_stages", *arguments])


def quantizes(build, to):
    """Whether a codec leaves embeddings and the output layer alone unless told otherwise, as casts do not."""
    codecs = {codec["name"]: codec for codec in run([build / "nibble", "formats", "--json"])["codecs"]}
    return codecs[to.partition(":")[0]]["quantizes"]


def every_matrix(build, to):
    """The options with which a conversion quantizes embeddings and the output layer, too; none for casts."""
    if not quantizes(build, to):
        return []
    return ["--embeddings", to, "--lm-head", to, "--no-default-skips", "--allow-nibble-only"]


def every_matrix_encoded(build, to):
    """The same for `bench_stages encode`."""
    return ["--all"] if quantizes(build, to) else []


def settle(build, directory, size):
    """Leaves the disk idle, with blocks at hand for `size` bytes: as many are written and removed again.

    Virtual disks take several times longer for blocks that they do not hold, or no longer since a file was removed.
    Without this, which of the measurements meets such blocks would be chance.
    """
    os.sync()
    stages(build, "write", directory, "--bytes", max(size, 1 << 20))
    os.sync()


def warm(path):
    """Brings a file into the page cache."""
    buffer = bytearray(8 << 20)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


class Results:
    """Samples by name, in the order of their first one; written as they stand by save()."""

    def __init__(self, path, run):
        self.path = path
        self.run = {"kind": "run", "date": time.strftime("%Y-%m-%d"), **run}
        self.lines = {}

    def add(self, name, sample, unit="s", **extra):
        """One sample, and what is said about the measurement; numbers in `extra` that are lists grow with it."""
        line = self.lines.setdefault(name, {"name": name, "unit": unit, "median": None, "samples": []})
        line["samples"].append(sample)
        line["median"] = statistics.median(line["samples"])
        line.update(extra)

    def add_process(self, name, usage, **extra):
        """What `bench_stages time` printed: wall time is the sample, of the rest the medians are kept."""
        self.add(name, usage["seconds"], **extra)
        line = self.lines[name]
        for field in ("user", "system", "peak_bytes"):
            line.setdefault(f"{field}_samples", []).append(usage[field])
            line[field] = statistics.median(line[f"{field}_samples"])

    def save(self):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        rows = [self.run, *self.lines.values()]
        self.path.write_text("".join(json.dumps(rounded(row)) + "\n" for row in rows))


def rounded(value):
    """Floats with five significant digits: no more of them are measured."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [rounded(inner) for inner in value]
    return value


def load(path):
    """(the run, {name: measurement}) of a results file; nothing of one that is not there."""
    if not pathlib.Path(path).is_file():
        return {}, {}
    rows = [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]
    return rows[0], {row["name"]: row for row in rows[1:]}


def report_ratios(lines, name):
    """What a conversion with its error report takes over one without: medians over pairs, of time and processor time."""
    with_report, without = lines[name], lines[f"{name}/without-report"]

    def cpu(line):
        return [user + system for user, system in zip(line["user_samples"], line["system_samples"])]

    def median(ratios):
        return statistics.median(over / under for over, under in ratios)

    return median(zip(with_report["samples"], without["samples"])), median(zip(cpu(with_report), cpu(without)))
