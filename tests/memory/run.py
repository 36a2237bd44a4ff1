#!/usr/bin/env python3
"""Converts and measures sparse checkpoints of any size within little memory, and fails if one takes more than it may.

  tests/memory/run.py [NIBBLE]           models of up to 5 GB: about a minute, 2 GB of disk
  tests/memory/run.py [NIBBLE] --full    more cases, of up to 40 GB: about five minutes, 11 GB of disk
  tests/memory/run.py [NIBBLE] --only 'one tensor'

Where a memory cgroup can be made (as root, mostly), each command runs in one that is limited to what --max-memory
allows, without swap: page cache counts there, but can be reclaimed. Peak RSS is checked in any case. The inputs are
sparse and hold zeros but for a few weights, by which it is seen that far away weights land where they should.
"""

import argparse
import json
import math
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time

MIB = 1 << 20
PEAK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "peak.py")
ONE = b"\x80\x3f"  # 1.0 as bf16
NF4_ZERO, NF4_ONE = 7, 15  # codes, in a block whose absmax is 1


def write_checkpoint(path, tensors, ones=()):
    """tensors: (name, shape) of bf16 zeros. ones: (tensor, weight) that are 1."""
    entries, offsets, end = [], [], 0
    for name, shape in tensors:
        offsets.append(end)
        end += 2 * math.prod(shape)
        entries.append(f'{json.dumps(name)}:{{"dtype":"BF16","shape":{json.dumps(shape)},'
                       f'"data_offsets":[{offsets[-1]},{end}]}}')
    header = ("{" + ",".join(entries) + "}").encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + end)
        for tensor, weight in ones:
            file.seek(8 + len(header) + offsets[tensor] + 2 * weight)
            file.write(ONE)


def write_statistics(path, name, columns, second_moment=False):
    """A calibration with one input, whose columns are all 0."""
    os.mkdir(path)
    shapes = {"mean_square": [columns], "absmax": [columns]} | ({"second_moment": [columns] * 2} if second_moment else {})
    entries, end = {}, 0
    for statistic, shape in shapes.items():
        begin, end = end, end + 4 * math.prod(shape)
        entries[f"x.{statistic}"] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    write_header(f"{path}/x.safetensors", json.dumps(entries).encode(), end)
    with open(f"{path}/calibration.json", "w") as file:
        json.dump({"format": "nibble.calibration", "version": 1, "second_moments": second_moment,
                   "inputs": {"x": {"columns": columns, "tokens": 1, "file": "x.safetensors"}},
                   "weights": {name: ["x"]}}, file)


def write_header(path, header, data_bytes=0):
    """A file with this header, which may be anything."""
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + data_bytes)


def write_config(folder, config):
    os.mkdir(folder)
    with open(f"{folder}/config.json", "w") as file:
        file.write(config)
    write_checkpoint(f"{folder}/model.safetensors", [layer(0, "up", [64, 64])])


EMPTY = '"dtype":"U8","data_offsets":[0,0],"shape"'


def metadata_of(keys):
    return ("{\"__metadata__\":{" + ",".join(f"\"{key:x}\":\"\"" for key in range(keys)) + "}}").encode()


def many_dimensions(tensors, backwards=False):
    """Empty ones, or ones of a byte each that come in the opposite order of their data."""
    shape = "[" + "1," * 63 + ("1]" if backwards else "0]")
    offsets = [(tensors - i - 1, tensors - i) if backwards else (0, 0) for i in range(tensors)]
    return ("{" + ",".join(f'"{i:x}":{{"dtype":"U8","shape":{shape},"data_offsets":[{begin},{end}]}}'
                           for i, (begin, end) in enumerate(offsets)) + "}").encode()


def unknown_field(size):
    return ('{"w":{' + EMPTY + ':[0],"x":"' + "x" * size + '"}}').encode()


def write_model(folder, architecture, shards, ones=()):
    """A model directory of these shards; ones: (tensor, weight) of the first."""
    os.mkdir(folder)
    if architecture:
        with open(f"{folder}/config.json", "w") as file:
            json.dump({"architectures": [architecture], "model_type": "x", "tie_word_embeddings": False}, file)
    if len(shards) == 1:
        return write_checkpoint(f"{folder}/model.safetensors", shards[0], ones)
    weight_map = {}
    for i, tensors in enumerate(shards):
        name = f"model-{i + 1:05}-of-{len(shards):05}.safetensors"
        write_checkpoint(f"{folder}/{name}", tensors, ones if i == 0 else ())
        weight_map.update({tensor: name for tensor, shape in tensors})
    with open(f"{folder}/model.safetensors.index.json", "w") as file:
        json.dump({"metadata": {}, "weight_map": weight_map}, file)


def layer(i, name, shape):
    return f"model.layers.{i}.{name}.weight", shape


def write_adapter(path, rank, tensors, config=""):
    """LoRA of these matrices, whose update is 1 at the last weight and 0 elsewhere. The base is written beside it."""
    os.mkdir(f"{path}-adapter")
    with open(f"{path}-adapter/adapter_config.json", "w") as file:
        file.write(f'{{"peft_type":"LORA","r":{rank},"lora_alpha":{rank}{config}}}')
    factors, ones = [], []
    for name, (out, columns) in tensors:
        module = name.removesuffix(".weight")
        for part, shape in (("lora_A", [rank, columns]), ("lora_B", [out, rank])):
            ones.append((len(factors), math.prod(shape) - 1))
            factors.append((f"base_model.model.{module}.{part}.weight", shape))
    write_checkpoint(f"{path}-adapter/adapter_model.safetensors", factors, ones)


def write_base_and_adapter(path, rank, tensors):
    write_checkpoint(path, tensors)
    write_adapter(path, rank, tensors)


def write_patterns(path, keys):
    """A base with an adapter that has a rank for each of so many modules."""
    tensors = [layer(0, "up", [64, 64])]
    write_checkpoint(path, tensors)
    patterns = ",".join(f'"layers.{i // 1000}.mlp.experts.{i % 1000}.up":8' for i in range(keys))
    write_adapter(path, 8, tensors, f',"rank_pattern":{{{patterns}}}')


def write_expressions(path, keys):
    """The same with ranks and scales for regular expressions, whose states are as many as RE2 has room for."""
    tensors = [layer(i, "up", [64, 64]) for i in range(60)]
    write_checkpoint(path, tensors)
    patterns = ",".join(f'"(a|b)*m(o|d|.){{40}}x{i}|y":8' for i in range(keys))
    write_adapter(path, 8, tensors, f',"rank_pattern":{{{patterns}}},"alpha_pattern":{{{patterns}}}')


def expert_names(count):
    return [layer(i // 1000, f"mlp.experts.{i % 1000}.up_proj", [64, 64]) for i in range(count)]


LARGE = [65_536, 36_864]  # 4.8 GB: every 32-bit size would be too small
EXPERTS = [128, 8_192, 6_688]  # 7.0e9 weights, 14 GB
CONV1D = [8_192, 65_536]  # 1.1 GB, transposed
EXPERT_NAME = "model.layers.0.mlp.experts.down_proj"


def last_byte(name, shape):
    """The last weight is 1, the one before it 0."""
    return name, (math.prod(shape) - 1) // 2, NF4_ZERO << 4 | NF4_ONE


def all_codes(weights, ones):
    """Whether every weight was measured: zeros but for some that are 1, in NF4."""
    counts = [0] * 16
    counts[NF4_ZERO], counts[NF4_ONE] = weights - ones, ones

    def problem(found):
        (test,) = found["tests"]
        used = [sum(tensor["code_use"][code] for tensor in test["tensors"]) for code in range(16)]
        if used != counts or test["total"]["weights"] != weights or test["missing"]:
            return f"codes {used} of {test['total']['weights']} weights, not {counts}"
        return None

    return problem


# How the input is made, the options, --max-memory in MiB, bytes to be found in the output (part, offset, value).
# Or the options of `measure`, those of the conversion before it, which is not limited, and what is wrong with the JSON.
# Or those of `dequantize`, after such a conversion.
# Or those of `merge`, whose adapter `make` has put beside the input.
# Or those of `inspect`: `mib` is what its --max-memory is unless it is given.
# Where the command is to be refused: the exit code, and what the line on stderr says.
CASES = {
    "100,000 tensors in one header": dict(
        make=lambda path: write_checkpoint(path, expert_names(100_000)),
        options=["--to", "nf4"], mib=64),
    "100,000 tensors, many shards": dict(
        make=lambda path: write_model(path, None, [expert_names(100_000)]),
        options=["--to", "nf4", "--max-shard-size", "20MB"], mib=64, full=True),
    "one tensor of 4.8 GB to NF4": dict(
        make=lambda path: write_checkpoint(path, [layer(0, "up", LARGE)], [(0, math.prod(LARGE) - 1), (0, 1 << 31)]),
        options=["--to", "nf4"], mib=64,
        bytes=[last_byte(layer(0, "up", LARGE)[0], LARGE),
               (layer(0, "up", LARGE)[0], 1 << 30, NF4_ONE << 4 | NF4_ZERO)]),
    "one tensor of 4.8 GB to int8": dict(
        make=lambda path: write_checkpoint(path, [layer(0, "up", LARGE)], [(0, math.prod(LARGE) - 1)]),
        options=["--to", "int8"], mib=32,
        bytes=[(layer(0, "up", LARGE)[0], math.prod(LARGE) - 1, 127)]),
    "experts of 7 G weights, split": dict(
        make=lambda path: write_model(path, "Qwen3MoeForCausalLM", [[(EXPERT_NAME, EXPERTS)]],
                                      [(0, math.prod(EXPERTS) - 1)]),
        options=["--to", "nf4", "--experts", "nf4", "--allow-nibble-only", "--max-shard-size", "100GB"], mib=32,
        bytes=[last_byte("model.layers.0.mlp.experts.127.down_proj.weight", EXPERTS[1:])], full=True),
    "7 G weights in one tensor: absmax in a file": dict(
        make=lambda path: write_checkpoint(path, [(EXPERT_NAME, EXPERTS)], [(0, math.prod(EXPERTS) - 1)]),
        options=["--to", "nf4", "--no-double-quant", "--tensor", ".*=nf4", "--allow-nibble-only"], mib=32,
        bytes=[last_byte(EXPERT_NAME, EXPERTS), (EXPERT_NAME + ".absmax", math.prod(EXPERTS) // 64 * 4 - 1, 0x3F)],
        full=True),
    "1.1 G weights: absmax in a file": dict(
        make=lambda path: write_checkpoint(path, [layer(0, "up", [32_768, 32_768])], [(0, 32_768 ** 2 - 1)]),
        options=["--to", "nf4", "--no-double-quant"], mib=32,
        bytes=[last_byte(layer(0, "up", [])[0], [32_768, 32_768]),
               (layer(0, "up", [])[0] + ".absmax", 32_768 ** 2 // 64 * 4 - 1, 0x3F)]),
    "Conv1D of 1.1 GB, transposed": dict(
        make=lambda path: write_model(path, "GPT2LMHeadModel", [[("transformer.h.0.mlp.c_fc.weight", CONV1D)]],
                                      [(0, math.prod(CONV1D) - 1), (0, CONV1D[1] - 1)]),
        options=["--to", "nf4"], mib=96,
        bytes=[last_byte("transformer.h.0.mlp.c_fc.weight", CONV1D),
               ("transformer.h.0.mlp.c_fc.weight", (CONV1D[1] - 1) * CONV1D[0] // 2, NF4_ONE << 4 | NF4_ZERO)]),
    "64 threads": dict(
        make=lambda path: write_checkpoint(path, [layer(i, "up", [4096, 4096]) for i in range(20)]),
        options=["--to", "nf4", "--threads", "64"], mib=64),
    "tensors of a chunk each, 8 threads": dict(
        make=lambda path: write_checkpoint(path, [layer(i, "up", [2048, 1024]) for i in range(150)]),
        options=["--to", "nf4", "--block-size", "32", "--threads", "8"], mib=40),
    "chunks of a million weights, 4 threads": dict(
        make=lambda path: write_checkpoint(path, [layer(i, "up", [4096, 4096]) for i in range(2)]),
        options=["--to", "nf4", "--block-size", "4096", "--absmax", "search", "--threads", "4"], mib=24),
    "statistics of 8 M columns": dict(
        make=lambda path: (write_checkpoint(path, [layer(0, "up", [4, 8 * MIB])]),
                           write_statistics(f"{path}-statistics", layer(0, "up", [])[0], 8 * MIB)),
        options=["--to", "nf4", "--absmax", "search"], statistics=True, mib=56),
    "compensation of 1536 columns": dict(
        make=lambda path: (write_checkpoint(path, [layer(0, "up", [256, 1536])]),
                           write_statistics(f"{path}-statistics", layer(0, "up", [])[0], 1536, second_moment=True)),
        options=["--to", "nf4", "--compensate"], statistics=True, mib=39),
    "rows of one weight to int8, 8 threads": dict(
        make=lambda path: write_checkpoint(path, [layer(i, "up", [1 << 20, 1]) for i in range(30)]),
        options=["--to", "int8", "--threads", "8"], mib=64),
    "64 threads that widen": dict(
        make=lambda path: write_checkpoint(path, [layer(0, "up", [12 * 4096, 4096])]),
        options=["--to", "fp32", "--threads", "64"], mib=64),
    "400 names of 100,000 bytes": dict(
        make=lambda path: write_checkpoint(path, [layer(i, "x" * 100_000, [64, 64]) for i in range(400)]),
        options=["--to", "fp16"], mib=256),
    "measure 4.8 GB against its NF4": dict(
        make=lambda path: write_checkpoint(path, [layer(0, "up", LARGE)], [(0, math.prod(LARGE) - 1), (0, 1 << 31)]),
        before=["--to", "nf4"], measure=["--json"], mib=128, problem=all_codes(math.prod(LARGE), 2), full=True),
    "measure 4.8 GB --to nf4: encoded into a file": dict(
        make=lambda path: write_checkpoint(path, [layer(0, "up", LARGE)], [(0, math.prod(LARGE) - 1), (0, 1 << 31)]),
        measure=["--json", "--to", "nf4"], mib=128, problem=all_codes(math.prod(LARGE), 2)),
    "measure 100,000 tensors against their NF4": dict(
        make=lambda path: write_checkpoint(path, expert_names(100_000), [(99_999, 4095)]),
        before=["--to", "nf4"], measure=["--json"], mib=256, problem=all_codes(100_000 * 4096, 1), full=True),
    "100,000 tensors of NF4, dequantized": dict(
        make=lambda path: write_checkpoint(path, expert_names(100_000), [(99_999, 4095)]),
        before=["--to", "nf4"], dequantize=["--to", "bf16"], mib=320,
        bytes=[(expert_names(100_000)[-1][0], 2 * 4095 + 1, ONE[1])], full=True),
    "one tensor of 4.8 GB, dequantized": dict(
        make=lambda path: write_checkpoint(path, [layer(0, "up", LARGE)], [(0, math.prod(LARGE) - 1), (0, 1 << 31)]),
        before=["--to", "nf4"], dequantize=["--to", "bf16"], mib=192,
        bytes=[(layer(0, "up", LARGE)[0], 2 * (math.prod(LARGE) - 1) + 1, ONE[1]),
               (layer(0, "up", LARGE)[0], (2 << 31) + 1, ONE[1])], full=True),
    "one tensor of 4.8 GB of int8, dequantized": dict(
        make=lambda path: write_checkpoint(path, [layer(0, "up", LARGE)], [(0, math.prod(LARGE) - 1)]),
        before=["--to", "int8"], dequantize=["--to", "fp16"], mib=32,
        bytes=[(layer(0, "up", LARGE)[0], 2 * (math.prod(LARGE) - 1) + 1, 0x3C)], full=True),
    "experts of 0.9 G weights, put together": dict(
        make=lambda path: write_model(path, "GptOssForCausalLM", [[(EXPERT_NAME, [16, 8_192, 6_688])]],
                                      [(0, 16 * 8_192 * 6_688 - 1)]),
        before=["--to", "nf4", "--experts", "nf4:double-quant=no", "--allow-nibble-only"],
        dequantize=["--to", "bf16"], mib=48,
        bytes=[(EXPERT_NAME, 2 * (16 * 8_192 * 6_688 - 1) + 1, ONE[1]), (EXPERT_NAME, 1 << 30, 0)]),
    "an adapter of rank 512, merged into bf16": dict(
        make=lambda path: write_base_and_adapter(path, 512, [layer(i, "down", [4096, 14_336]) for i in range(4)]),
        merge=["--to", "bf16"], mib=192,
        bytes=[(layer(3, "down", [])[0], 2 * (4096 * 14_336 - 1) + 1, ONE[1]), (layer(3, "down", [])[0], 1, 0)]),
    "an adapter of rank 512, merged into nf4": dict(
        make=lambda path: write_base_and_adapter(path, 512, [layer(i, "up", [14_336, 4096]) for i in range(4)]),
        merge=["--to", "nf4"], mib=192, bytes=[last_byte(layer(3, "up", [])[0], [14_336, 4096])]),
    "an adapter of rank 16, merged into 4.8 GB of NF4": dict(
        make=lambda path: write_base_and_adapter(path, 16, [layer(0, "up", LARGE)]),
        before=["--to", "nf4"], merge=["--to", "nf4"], mib=256, bytes=[last_byte(layer(0, "up", [])[0], LARGE)],
        full=True),
    "a rank for each of 200,000 modules": dict(
        make=lambda path: write_patterns(path, 200_000), merge=["--to", "bf16"], mib=320,
        bytes=[(layer(0, "up", [])[0], 2 * 4095 + 1, ONE[1])]),
    "a rank for each of 200,000 modules, refused": dict(
        make=lambda path: write_patterns(path, 200_000), merge=["--to", "bf16"], mib=64,
        refused=(5, "adapter_config.json: opening it needs at least ")),
    "ranks for 256 regular expressions": dict(
        make=lambda path: write_expressions(path, 256), merge=["--to", "bf16"], mib=20,
        bytes=[(layer(59, "up", [])[0], 2 * 4095 + 1, ONE[1])]),
    "measure 100,000 tensors --to nf4": dict(
        make=lambda path: write_checkpoint(path, expert_names(100_000), [(99_999, 4095)]),
        measure=["--json", "--to", "nf4"], mib=176, problem=all_codes(100_000 * 4096, 1)),
    "measure with 64 threads": dict(
        make=lambda path: write_checkpoint(path, [layer(i, "up", [4096, 4096]) for i in range(20)]),
        measure=["--json", "--to", "nf4", "--threads", "64"], mib=64, problem=all_codes(20 * 4096 * 4096, 0)),
    "8 M keys of metadata, refused": dict(
        make=lambda path: write_header(path, metadata_of(8_000_000)), options=["--to", "nf4"], mib=64,
        refused=(5, "in: opening it needs at least ")),
    "8 M keys of metadata, accepted": dict(
        make=lambda path: write_header(path, metadata_of(8_000_000)), options=["--to", "nf4"], mib=640, full=True),
    "measure 8 M keys of metadata, refused": dict(
        make=lambda path: write_header(path, metadata_of(8_000_000)), measure=["--to", "nf4"], mib=64,
        refused=(5, "in: opening it needs at least "), full=True),
    "inspect 8 M keys of metadata": dict(
        make=lambda path: write_header(path, metadata_of(8_000_000)), inspect=[], mib=953, full=True),
    "50 M dimensions": dict(
        make=lambda path: write_header(path, ('{"w":{' + EMPTY + ":[" + "1," * 48_000_000 + "0]}}").encode()),
        options=["--to", "nf4"], mib=32, refused=(3, "in: tensor 'w': shape has more than 64 dimensions")),
    "500,000 tensors of 64 dimensions, refused": dict(
        make=lambda path: write_header(path, many_dimensions(500_000)), options=["--to", "nf4"], mib=128,
        refused=(5, "in: opening it needs at least "), full=True),
    "inspect 500,000 tensors of 64 dimensions": dict(
        make=lambda path: write_header(path, many_dimensions(500_000)), inspect=[], mib=953, full=True),
    "inspect --json 500,000 tensors of 64 dimensions": dict(
        make=lambda path: write_header(path, many_dimensions(500_000)), inspect=["--json"], mib=953, full=True),
    "inspect 500,000 tensors of 64 dimensions, backwards": dict(
        make=lambda path: write_header(path, many_dimensions(500_000, backwards=True), 500_000), inspect=[], mib=953,
        full=True),
    "an unknown field of 90 MB, refused": dict(
        make=lambda path: write_header(path, unknown_field(90_000_000)), options=["--to", "nf4"], mib=64,
        refused=(5, "in: header: opening it needs at least ")),
    "an unknown field of 90 MB, accepted": dict(
        make=lambda path: write_header(path, unknown_field(90_000_000)), options=["--to", "nf4"], mib=400, full=True),
    "config.json of 13.8 MB, refused": dict(
        make=lambda path: write_config(path, "{" + ",".join(f'"{key:07x}":1' for key in range(1_150_000)) + "}"),
        options=["--to", "nf4"], mib=40, refused=(5, "config.json: opening it needs at least ")),
    "config.json of 13.8 MB, accepted": dict(
        make=lambda path: write_config(path, "{" + ",".join(f'"{key:07x}":1' for key in range(1_150_000)) + "}"),
        options=["--to", "nf4"], mib=128),
    "a model of 40 GB": dict(
        make=lambda path: write_model(path, "LlamaForCausalLM", [
            [layer(8 * shard + i, name, shape) for i in range(8)
             for name, shape in [("self_attn.q_proj", [8192, 8192]), ("mlp.gate_proj", [28672, 8192]),
                                 ("mlp.up_proj", [28672, 8192])]] for shard in range(5)]),
        options=["--to", "nf4"], mib=64, full=True),
}


class Cgroup:
    """A memory cgroup with a limit, of version 1 or 2; `problem` says why there is none."""

    def __init__(self, limit):
        self.folder, self.problem = None, "no memory controller"
        with open("/proc/self/cgroup") as file:
            paths = {line.split(":")[1]: line.strip().split(":", 2)[2] for line in file}
        for root, path, limits in (
                ("/sys/fs/cgroup/memory", paths.get("memory", "/"),
                 {"memory.limit_in_bytes": limit, "memory.memsw.limit_in_bytes": limit}),
                ("/sys/fs/cgroup", paths.get("", "/"), {"memory.max": limit, "memory.swap.max": 0})):
            first = next(iter(limits))
            folder = f"{root}{path.rstrip('/')}/nibble-{os.getpid()}"
            try:
                os.mkdir(folder)
                self.folder = folder
                for name, value in limits.items():
                    if name == first or os.path.exists(f"{folder}/{name}"):
                        with open(f"{folder}/{name}", "w") as file:
                            file.write(str(value))
                return
            except OSError as error:
                self.problem = error
                self.close()

    def procs(self):
        return [f"{self.folder}/cgroup.procs"] if self.folder else []

    def close(self):
        for _ in range(50):
            if not self.folder:
                return
            try:
                os.rmdir(self.folder)
                self.folder = None
            except FileNotFoundError:
                self.folder = None
            except OSError:
                time.sleep(0.1)


def stored_byte(path, part, offset):
    if os.path.isdir(path):
        path += "/model.safetensors"
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        begin = json.loads(file.read(length))[part]["data_offsets"][0]
        file.seek(8 + length + begin + offset)
        return file.read(1)[0]


def run(nibble, name, case, work):
    """Returns what is wrong, if anything."""
    path, out = f"{work}/in", f"{work}/out"
    # In a process of its own, for no case to leave its memory to those after it.
    subprocess.run([sys.executable, __file__, "--make", name, path], check=True)
    if before := case.get("before"):
        subprocess.run([nibble, "convert", path, out, *before, "--progress", "none"], check=True, capture_output=True)
    limit = case["mib"] * MIB
    cgroup = Cgroup(limit)
    if "inspect" in case:
        command = [nibble, "inspect", path, *case["inspect"]]
    else:
        own = case.get("options") or case.get("dequantize") or case.get("merge") or case["measure"]
        what = ["convert", path, out] if "options" in case else ["measure", path, *([out] if before else [])]
        if "dequantize" in case:
            what = ["dequantize", out, plain := f"{work}/plain"]
            out = plain
        if "merge" in case:
            what = ["merge", out if before else path, f"{path}-adapter", merged := f"{work}/merged"]
            out = merged
        if case.get("statistics"):
            own = [*own, "--calibration", f"{path}-statistics"]
        options = own + ([] if "--threads" in own else ["--threads", "2"])
        command = [nibble, *what, *options, "--max-memory", f"{case['mib']}MiB", "--progress", "none"]
    start = time.monotonic()
    with open(f"{work}/log", "w") as log, open(f"{work}/found", "w") as found:
        # Files for what does not fit have to be on a disk: where TMPDIR is memory, they would count.
        subprocess.run([sys.executable, "-I", "-S", PEAK, f"{work}/peak", *cgroup.procs(), "--", *command], check=True,
                       stdout=found, stderr=log, env=dict(os.environ, TMPDIR=work))
    with open(f"{work}/peak") as file:
        status, peak_kib = map(int, file.read().split())
    seconds = time.monotonic() - start
    where = "in a cgroup of that" if cgroup.folder else f"no cgroup ({cgroup.problem})"
    print(f"{name}: {peak_kib / 1024:.1f} MiB of {case['mib']} MiB, {where}, {seconds:.1f} s", flush=True)
    cgroup.close()
    code, says = case.get("refused", (0, ""))
    with open(f"{work}/log") as log:
        said = log.read()
    if os.waitstatus_to_exitcode(status) != code or says not in said:
        return f"ended with {os.waitstatus_to_exitcode(status)}: {said}"
    if peak_kib * 1024 > limit:
        return f"took {peak_kib / 1024:.1f} MiB"
    if problem := case.get("problem"):
        with open(f"{work}/found") as file:
            return problem(json.load(file))
    for part, offset, value in case.get("bytes", []):
        if (found := stored_byte(out, part, offset)) != value:
            return f"byte {offset} of '{part}' is {found:#x}, not {value:#x}"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nibble", nargs="?", default="build/release/nibble")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--only", help="cases whose name holds this text")
    parser.add_argument("--work", help="folder for the files (default: a temporary one)")
    parser.add_argument("--make", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.make:
        CASES[arguments.make[0]]["make"](arguments.make[1])
        return 0
    failures = []
    for name, case in CASES.items():
        if (case.get("full") and not arguments.full) or (arguments.only or "") not in name:
            continue
        work = tempfile.mkdtemp(dir=arguments.work)
        try:
            if problem := run(os.path.abspath(arguments.nibble), name, case, work):
                failures.append(name)
                print(f"FAILED: {name}: {problem}", file=sys.stderr, flush=True)
        finally:
            shutil.rmtree(work)
    print("failed: " + "; ".join(failures) if failures else "all within their memory")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
