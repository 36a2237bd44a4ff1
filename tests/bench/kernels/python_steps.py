#!/usr/bin/env python3
"""The steps of bench/kernels.sh that use nibble's Python package, tried on the CPU by a Python that has torch.

usage: tests/bench/kernels/python_steps.py FOLDER     what bench/kernels.sh has built, whose packages Python finds
"""

import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import time

FOLDER = pathlib.Path(sys.argv[1]).resolve()
sys.path.insert(0, str(FOLDER))

import kernels_gpu  # noqa: E402
import kernels_linear4bit  # noqa: E402
import kernels_product  # noqa: E402
import kernels_python  # noqa: E402
import torch  # noqa: E402

NEED_A_GPU = ("streams", "graphs", "refused")


def expect(condition, text):
    if not condition:
        sys.exit(f"error: {text}")


def lines_of(function, *arguments):
    """What the function returns, and {name: line} of what it prints."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        value = function(*arguments)
    lines = [json.loads(line) for line in text.getvalue().splitlines() if line.startswith("{")]
    return value, {line["name"]: line for line in lines}


# -- products that are wrong


def check_faults():
    torch.manual_seed(0)
    x, weight, bias = torch.randn(65, 208), torch.randn(96, 208).double(), torch.randn(96)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        a, b = x.to(dtype), bias.to(dtype)
        exact = a.double() @ weight.T + b.double()
        right = exact.to(dtype)
        expect(kernels_product.fault(right, a, weight, b) is None, f"{dtype}: the exact product is refused")
        one_wrong, all_worse, lost = right.clone(), right * 1.02, right.clone()
        one_wrong[3, 5] += 1
        lost[7, 7] = torch.nan
        without_bias = (exact - b.double()).to(dtype)
        without_a_term = (exact - a[:, -1:].double() * weight[:, -1:].T).to(dtype)
        for wrong in (one_wrong, all_worse, lost, without_bias, without_a_term):
            expect(kernels_product.fault(wrong, a, weight, b), f"{dtype}: a wrong product is taken")
    in_bf16 = (x.bfloat16().double() @ weight.bfloat16().double().T).float()
    expect(kernels_product.fault(in_bf16, x, weight), "products in bf16 are taken for fp32")


# -- kernels_python.py


def check_python():
    command = [sys.executable, FOLDER / "kernels_python.py", "--device", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    wrong = [line for line in lines if "error" in line]
    expect(done.returncode == 0 and not wrong, f"{done.returncode}: {wrong}\n{done.stderr}")
    names = [f"python/{name}" for name in ("versions", *kernels_python.CHECKS)]
    expect([line["name"] for line in lines] == names, f"{[line['name'] for line in lines]}, not {names}")
    expect(pathlib.Path(lines[0]["package"]) == FOLDER / "python" / "nibble", f"it imports {lines[0]['package']}")
    left_out = {line["name"].split("/")[1] for line in lines if "left_out" in line}
    expect(left_out == set(NEED_A_GPU), f"left out: {left_out}")


def run_main(*arguments):
    sys.argv[1:] = arguments
    return lines_of(kernels_python.main)


def check_failures():
    """A check that fails is a line, and the others go on; in a new process if the device is lost."""
    package = kernels_python.PACKAGE
    kernels_python.PACKAGE = pathlib.Path("/nonexistent")
    expect(run_main("--device", "cpu")[0] == kernels_gpu.NOT_THERE, "without a package, the step is not left out")
    kernels_python.PACKAGE = package

    def broken(argument):
        raise RuntimeError("CUDA error:\nan illegal memory access")

    found = kernels_python.CHECKS["shapes/nf4"]
    kernels_python.CHECKS["shapes/nf4"] = (broken, "nf4")
    status, lines = run_main("--device", "cpu", "--only", "shapes")
    line = lines.pop("python/shapes/nf4")
    expect(line["error"] == "RuntimeError: CUDA error: an illegal memory access", line)
    expect(status == 1 and len(lines) == 4 and not any("error" in line for line in lines.values()), lines)

    class Replaced(Exception):
        pass

    def replaced(path, command):
        raise Replaced(command[command.index(kernels_python.__file__) + 1 :])

    lost, execv = kernels_python.device_is_lost, os.execv
    kernels_python.device_is_lost, os.execv = lambda: True, replaced
    try:
        run_main("--device", "cpu", "--only", "shapes")
        expect(False, "with a lost device, the same process goes on")
    except Replaced as error:
        command = error.args[0]
    kernels_python.device_is_lost, os.execv = lost, execv
    kernels_python.CHECKS["shapes/nf4"] = found
    status, lines = run_main(*command)
    expect(status == 1, "the earlier failure is forgotten")
    rest = [name for name in kernels_python.CHECKS if name.startswith("shapes/")][1:]
    expect(set(lines) == {"python/versions", *(f"python/{name}" for name in rest)}, lines)


def check_wrong_results():
    """Of each group of checks, one that a wrong operator fails."""
    kernels_python.DEVICE = "cpu"
    operators = torch.ops.nibble
    right = {name: getattr(operators, name) for name in ("quantize_4bit", "dequantize_4bit", "linear_4bit",
                                                         "linear_int8")}  # fmt: skip
    calls = [0]

    def second_is_wrong(function):
        """The first call is that for the CPU."""

        def call(*arguments):
            calls[0] += 1
            result = function(*arguments)
            return result if calls[0] % 2 else tuple(part + 1 for part in result)

        return call

    def off(function):
        return lambda *arguments: function(*arguments) * 1.01

    for name, wrong, checks in (
        ("quantize_4bit", second_is_wrong, ("operators/float32",)),
        ("linear_4bit", off, ("linear/nf4-bfloat16", "linear/fp4-128-float32")),
        ("linear_int8", off, ("linear/int8-float16",)),
    ):
        setattr(operators, name, wrong(right[name]))
        for check in checks:
            expect("error" in kernels_python.run(check), f"{check} takes a wrong {name}")
        setattr(operators, name, right[name])


# -- kernels_linear4bit.py

SHAPES, TOKENS = ((96, 208), (64, 128)), (1, 65)


def measured_names(whos):
    return {f"linear4bit/{what}/{n}x{k}/m{m}/{who}" for what in ("forward", "forward-backward") for n, k in SHAPES
            for m in TOKENS for who in whos}  # fmt: skip


def microseconds(calls):
    begin = time.perf_counter()
    for call in calls:
        call()
    return 1e6 * (time.perf_counter() - begin)


def check_linear4bit():
    step = kernels_linear4bit
    step.DEVICE, step.SHAPES, step.TOKENS, step.UNCACHED_BYTES, step.microseconds = (
        "cpu", SHAPES, TOKENS, 1000, microseconds)  # fmt: skip
    step.kernels_gpu.end_without_gpu = lambda: None
    status, lines = lines_of(step.main)
    expect(status == 0 and "nibble" in lines.pop("versions"), f"{status}: {lines}")
    whos = {"nibble", "bitsandbytes", "torch-bf16"}
    expect(set(lines) == measured_names(whos), sorted(lines))
    for name, line in lines.items():
        others = set(line.get("faster_than", ()))
        expect(line["median"] > 0 and others == (whos - {"nibble"} if name.endswith("/nibble") else set()), line)

    right = torch.ops.nibble.linear_4bit_dx
    torch.ops.nibble.linear_4bit_dx = lambda *arguments: right(*arguments) * 1.1
    status, lines = lines_of(step.main)
    torch.ops.nibble.linear_4bit_dx = right
    wrong = {f"linear4bit/{n}x{k}/nibble" for n, k in SHAPES}
    expect(status == 1 and wrong == {name for name, line in lines.items() if "error" in line}, f"{status}: {lines}")
    expect(all("dx: error" in lines[name]["error"] for name in wrong), lines)
    expect(set(lines) - wrong - {"versions"} == measured_names(whos - {"nibble"}), "a wrong product is timed")


def main():
    check_faults()
    check_python()
    check_failures()
    check_wrong_results()
    check_linear4bit()
    print("the steps of the Python package ran on the CPU")


if __name__ == "__main__":
    main()
