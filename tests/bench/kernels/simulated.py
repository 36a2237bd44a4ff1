#!/usr/bin/env python3
"""The programs of bench/kernels.sh on small sizes, with the simulator instead of the GPU and plain loops instead of
cuBLASLt and bitsandbytes: what they compute, check and print, before they meet a device. Times mean nothing.

usage: tests/bench/kernels/simulated.py [BUILD]
"""

import collections
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "bench" / folder) for folder in ("kernels/run", "kernels/tune", "")]

import kernels_convert  # noqa: E402
import kernels_lines  # noqa: E402
import kernels_parts  # noqa: E402
import kernels_run  # noqa: E402
from kernels_parts import Step  # noqa: E402
from tune_plan import plan_of  # noqa: E402
from tune_results import read_results  # noqa: E402
from tune_table import text_of  # noqa: E402

TARGETS = ("bench_kernels_simulated", "bench_ceilings_simulated", "bench_tune_simulated", "nibble_simulated_cublaslt",
           "bench_simulated_bitsandbytes", "nibble_cuda_simulated", "nibble")  # fmt: skip
SHAPES, PRODUCT_SHAPES = ("64x256", "64x512", "192x256"), ("64x256b32", "64x304", "64x152")
CASES = ("matmul,64x256,1", "matmul,64x512,16", "matmul,64x256,128", "int8-matmul,64x256,1", "int8-matmul,192x256,64",
         "shared-matmul,64x256,1", "expert-matmul,64x256,3",
         "dequantize,192x256", "quantize,64x512")  # fmt: skip
TABLE_M, CEILING_M, SCRATCH_M, TUNED_M, MANY_M = (1, 8, 16, 32, 64), (1, 8, 48, 272), (16, 272), (1, 16, 64), (33, 160)
LIBRARY_M, TABLE_MANY_M = (48, 272), (128,)
SHARED, EXPERTS, EXPERT_TOKENS = "64+16+16x256", "4x32x256", (1, 8)


def expect(condition, text):
    if not condition:
        sys.exit(f"error: {text}")


def run(folder, out, steps, **peers):
    """{step: (status, {name: line})} of the steps."""
    runner = kernels_run.Runner(folder, "rehearsal", out, **peers)
    runner.load_state(True, [])
    runner.run(steps)
    found = {step.name: ("not run", {}) for step in steps}
    for line in kernels_lines.read_lines(out / "rehearsal.jsonl"):
        if line.get("kind") == "step":
            found[line["step"]] = (line["status"], found[line["step"]][1])
        elif "name" in line:
            found[line["step"]][1][line["name"]] = line
    (out / "rehearsal.jsonl").unlink()
    return found


def steps_of(part):
    """The part's own steps of our two programs, with a shape and cases of the simulated sizes."""
    for step in kernels_parts.PARTS[part]:
        if step.command[0] in ("bench_kernels", "bench_ceilings") and not step.tool and "--shape" not in step.command:
            yield step


def check_right(found, names):
    """The step is ok, and has a time for each name and for none else."""
    status, lines = found
    errors = [line for line in lines.values() if "error" in line]
    expect(status == "ok" and not errors, f"{status}: {errors}")
    times, wanted = {name for name, line in lines.items() if "median" in line or "rms" in line}, set(names)
    expect(times == wanted, f"without a time: {sorted(wanted - times)}; not expected: {sorted(times - wanted)}")


BANDWIDTHS = [f"{what}{again}" for what in ("copy/kernel", "copy/cudaMemcpyAsync", "read/kernel")
              for again in ("", "/again")]  # fmt: skip


def table_names(shapes):
    yield from BANDWIDTHS
    for shape in shapes:
        if "b32" not in shape:  # an int8 weight has no blocks
            yield from (f"matmul/bf16/int8/{shape}/m{m}/{by}" for m in TABLE_M for by in ("nibble", "cublaslt"))
        if shape in PRODUCT_SHAPES:
            yield from (f"matmul/bf16/nf4-nested/{shape}/m{m}/{by}" for m in TABLE_M
                        for by in ("nibble", "nibble-in-turn", "cublaslt"))  # fmt: skip
            continue
        yield from (f"quantize/bf16/nf4-nested/{shape}/{by}"
                    for by in ("nibble", "nibble-without-nesting", "bitsandbytes-without-nesting"))  # fmt: skip
        yield from (f"dequantize/nf4-nested/bf16/{shape}/{by}" for by in ("nibble", "bitsandbytes"))
        for m in (*TABLE_M, *TABLE_MANY_M):
            for by in ("nibble", "nibble-in-turn", "cublaslt", "bitsandbytes-fused", "bitsandbytes-dequantized"):
                yield f"matmul/bf16/nf4-nested/{shape}/m{m}/{by}"


def check_programs(folder, out, peers):
    found = run(folder, out, list(steps_of("check")), **peers)
    expect(found["bitsandbytes"][0] == "ok", found["bitsandbytes"])
    check_right(found["table-quick"], table_names(SHAPES[:1]))
    check_right(found["table/several"], [
        *BANDWIDTHS,
        *(f"shared-matmul/bf16/nf4-nested/{SHARED}/m{m}/{by}" for m in TABLE_M
          for by in ("nibble", "nibble-one-by-one")),
        *(f"expert-matmul/bf16/nf4-nested/{EXPERTS}/tokens{tokens}/nibble" for tokens in EXPERT_TOKENS)])  # fmt: skip
    for shape in SHAPES + PRODUCT_SHAPES:
        table = Step("table", ("bench_kernels", "--shape", shape, "{bitsandbytes}", "{cublaslt}"), 60)
        found = run(folder, out, [table], **peers)
        check_right(found["table"], table_names([shape]))

    found = run(folder, out, list(steps_of("ceilings")), **peers)
    for kind in ("bf16-nt", "bf16-nn", "s8-nt"):
        check_right(found[f"cublaslt/{kind}"], [f"cublaslt/{kind}/{shape}/m{m}" for shape in SHAPES for m in CEILING_M])
    status, lines = found["cublaslt/fp8-nt"]  # of what is not supported, the program says so and goes on
    refused = {name for name, line in lines.items() if "error" in line}
    expect(status == "ok" and refused == {f"cublaslt/fp8-nt/{s}/m{m}" for s in SHAPES for m in (1, 8)}, refused)
    expect(sum("median" in line for line in lines.values()) == len(SHAPES) * 2, lines)
    check_right(found["scratch"], [f"scratch/bf16-{kind}/{shape}/m{m}/{by}" for kind in ("nt", "nn") for shape in SHAPES
                                   for m in SCRATCH_M for by in ("cublaslt", "dequantize-cublaslt")])  # fmt: skip
    check_right(found["library"], [f"library/bf16/nf4-nested/{shape}/m{m}/{by}" for shape in SHAPES for m in LIBRARY_M
                                   for by in ("nibble-library", "nibble-fused", "cublaslt")])  # fmt: skip
    check_right(found["errors"], [f"errors/{shape}/m{m}" for shape in SHAPES for m in TABLE_M])
    for name, line in found["errors"][1].items():
        # docs/four-bit-matmul.md: 0.91 for m = 32; few tokens scatter more.
        expect(0.8 < line["rms_ratio"] < 1.05 and line["rms"] < 0.003, f"{name}: {line}")
    check_right(found["launches"], [f"launches/{by}/blocks{n}" for by in ("graph", "stream") for n in (1, 4, 32)])

    refused = ("matmul,64x256", "int8-matmul,64x256", "dequantize,64x256,1", "product,64x256,1")
    profiles = [Step(case, ("bench_kernels", "--profile", case), 20) for case in (*CASES, *refused)]
    found = {case: status for case, (status, _) in run(folder, out, profiles).items()}
    expect(found == {**dict.fromkeys(CASES, "ok"), **dict.fromkeys(refused, "failed")}, found)


def check_tune(folder, out):
    """Each case has its stages, each change its lines; and the table's script reads them."""
    step = Step("variants", ("bench_tune",), 250)
    status, lines = run(folder, out, [step])[step.name]
    expect(status == "ok", f"{status}: {[line for line in lines.values() if 'error' in line][:3]}")
    found = collections.defaultdict(set)
    for line in lines.values():
        if "variant" in line:
            found[line["shape"], line["m"]].add((line["stage"], line["change"]))
            expect(line["median"] > 0 and line["share_of_read"] > 0, line)
    wanted = {("tiles", "none"), ("loops", "none"), ("together", "none")}
    wanted |= {("loops", change) for change in ("barrier", "loads_first", "overlaps", "grid")}
    for shape in SHAPES + PRODUCT_SHAPES:
        for m in TUNED_M:
            all_of_case = set(wanted)
            if shape in SHAPES:  # kernels of short runs have neither
                all_of_case |= {("loops", "prefetched_steps")} | ({("loops", "keeps_x")} if m == 1 else set())
            if shape == PRODUCT_SHAPES[2] and m > 8:  # codes are copied to shared memory
                all_of_case -= {("loops", "loads_first")}
            expect(found[shape, m] - {("together", "together")} == all_of_case, f"{shape}, m {m}: {found[shape, m]}")
    defaults = {(line["shape"], line["m"]) for line in lines.values() if line.get("default")}
    expect(defaults == set(found), f"the library's own configuration is measured for {defaults} only")
    runs = {(line["shape"], line["variant"]["run"]) for line in lines.values() if "variant" in line}
    expect(runs == {*((shape, 64) for shape in SHAPES), *zip(PRODUCT_SHAPES, (32, 16, 8))}, runs)
    step = Step("variants/64x304", ("bench_tune", "--shape", "64x304"), 60)
    status, own = run(folder, out, [step])[step.name]
    expect(status == "ok" and {line["shape"] for line in own.values() if "variant" in line} == {"64x304"}, own)
    results = out / "tune_simulated.jsonl"
    with open(results, "w", encoding="utf-8") as file:
        subprocess.run([folder / "bin" / "bench_tune"], stdout=file, check=True)
    table = text_of(plan_of(read_results([results])))
    expect("    // bench/results/tune_simulated.jsonl, simulated device, 2" in table, table)


def check_int8(folder, out):
    """Each case with the plan's own configuration and others; and the table's script reads them, without other steps."""
    (step,) = [step for step in kernels_parts.PARTS["tune"] if step.command == ("bench_tune", "--int8")]
    status, lines = run(folder, out, [step])[step.name]
    expect(status == "ok", f"{status}: {[line for line in lines.values() if 'error' in line][:3]}")
    variants = [line for line in lines.values() if "int8_variant" in line]
    expect(all(line["median"] > 0 and line["share_of_read"] > 0 for line in variants), variants)
    found = collections.Counter((line["shape"], line["m"]) for line in variants if line["default"])
    wanted = collections.Counter((shape, m) for shape in SHAPES for m in TUNED_M)
    expect(found == wanted, f"the library's own configuration is measured for {found}")
    tiles = {line["int8_variant"]["m_tiles"] for line in variants}
    expect(tiles == {1, 2, 8}, f"for 1, 16 and 64 rows tiles of {tiles} are measured")
    expect({line["int8_variant"]["splits"] for line in variants} >= {1, 2}, "splits are not measured")
    results = out / "tune_int8.jsonl"
    with open(results, "w", encoding="utf-8") as file:
        subprocess.run([folder / "bin" / "bench_tune", "--int8"], stdout=file, check=True)
    table = text_of(plan_of(read_results([results])))
    expect("/// bench/results/tune_int8.jsonl, simulated device, 2" in table.split("namespace int8_matmul")[1], table)


def check_many_rows(folder, out):
    """Both kernels for each case, one line of each as the plan would launch it; and the table's script reads them."""
    (step,) = [step for step in kernels_parts.PARTS["tune"] if step.command == ("bench_tune", "--many-rows")]
    status, lines = run(folder, out, [step])[step.name]
    expect(status == "ok", f"{status}: {[line for line in lines.values() if 'error' in line][:3]}")
    found = collections.Counter((line["shape"], line["m"], line["kernel"]) for line in lines.values()
                                if line.get("default"))  # fmt: skip
    wanted = {(shape, m, kernel) for shape in SHAPES for m in MANY_M for kernel in ("mma", "wgmma")}
    expect(found == collections.Counter(wanted), f"the library's own configurations are measured for {found}")
    rows = {line["rows"] for line in lines.values() if line.get("kernel") == "wgmma" and line["median"] > 0}
    expect(rows == {32, 64, 96, 128}, f"wgmma is measured for {rows} rows at a time")


def check_wrong_results(folder, out, peers):
    """What gives a wrong result has no time, and its step fails."""
    os.environ["NIBBLE_SIMULATED_WRONG"] = "1"
    found = run(folder, out, [step for part in ("check", "ceilings") for step in steps_of(part)
                              if step.name in ("table-quick", "cublaslt/bf16-nt", "cublaslt/bf16-nn", "cublaslt/s8-nt",
                                               "cublaslt/fp8-nt")], **peers)  # fmt: skip
    del os.environ["NIBBLE_SIMULATED_WRONG"]
    for step, (status, lines) in found.items():
        timed = [name for name, line in lines.items() if "cublaslt" in name and "median" in line]
        expect(status == "failed" and not timed, f"{step}: {status}, and times of wrong results: {timed}")


def check_peer_that_does_not_load(folder, out, peers):
    steps = [step for step in steps_of("check") if step.name in ("bitsandbytes", "table-quick")]
    found = run(folder, out, steps, **{**peers, "bitsandbytes": pathlib.Path("/nonexistent.so")})
    expect(found["bitsandbytes"][0] == "failed", found["bitsandbytes"])
    check_right(found["table-quick"], [name for name in table_names(SHAPES[:1]) if "bitsandbytes" not in name])
    # If only that one is asked for, its failure is a line, and the rest is measured.
    table = Step("table", ("bench_kernels", "--quick", "--bitsandbytes", __file__, "{cublaslt}"), 60)
    found = run(folder, out, [table], **peers)
    status, lines = found["table"]
    expect(status == "failed" and "error" in lines["bitsandbytes"] and len(lines) > 10, (status, lines))


def check_conversion(build, scratch):
    """The leg of kernels_convert.py that needs a device."""
    kernels_convert.NIBBLE = build / "nibble"
    source = kernels_convert.small_checkpoint(scratch / "input")
    os.environ["NIBBLE_CUDA_LIBRARY"] = str(build / "tests" / "libnibble_cuda_simulated.so")
    for to in ("nf4", "int8"):
        expect(kernels_convert.convert(source, scratch, to, ("cpu", "cuda")), f"convert --to {to} differs")


def main():
    build = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "release").resolve()
    subprocess.run(["cmake", "-B", build, "-S", ROOT, "-DNIBBLE_BENCH=ON"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", build, "--target", *TARGETS], check=True, stdout=subprocess.DEVNULL)
    programs = build / "tests" / "bench" / "kernels"
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        (folder / "bin").mkdir()
        for name in ("bench_kernels", "bench_ceilings", "bench_tune"):
            shutil.copy(programs / f"{name}_simulated", folder / "bin" / name)
        peers = {"cublaslt": build / "tests" / "simulator" / "libnibble_simulated_cublaslt.so",
                 "bitsandbytes": programs / "libbench_simulated_bitsandbytes.so"}  # fmt: skip
        check_programs(folder, folder / "out", peers)
        check_tune(folder, folder / "out")
        check_int8(folder, folder / "out")
        check_many_rows(folder, folder / "out")
        check_wrong_results(folder, folder / "out", peers)
        check_peer_that_does_not_load(folder, folder / "out", peers)
        check_conversion(build, folder / "convert")
    print("the benchmarks ran in the simulator")


if __name__ == "__main__":
    main()
