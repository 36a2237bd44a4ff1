#!/usr/bin/env python3
"""A dry run of bench/kernels.sh: builds the folder, and runs its parts where no GPU is visible.

usage: tests/bench/kernels/kernels_run.py [FOLDER]     a folder that is built already

Every program must start by the folder alone, find every library in it, and say that there is no GPU; every file must be
written. Then the runner's own tests run.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "bench" / "kernels" / "run"))

import kernels_lines  # noqa: E402
import kernels_parts  # noqa: E402
import kernels_run  # noqa: E402

OF_THE_MACHINE = ("libc", "libm", "libdl", "librt", "libpthread", "libstdc++", "libgcc_s", "ld-linux", "linux-vdso",
                  "libtorch_cpu")  # which the Python that loads libnibble_torch has loaded
MAX_FILES, MAX_FILE_BYTES, MAX_FOLDER_BYTES = 8, 8 << 20, 60_000_000


def fail(text):
    sys.exit(f"error: {text}")


def check_libraries(folder):
    """Each library comes from the folder, unless it belongs to the machine."""
    env = {**os.environ, "LD_LIBRARY_PATH": str(folder / "lib")}
    for program in [*(folder / "bin").iterdir(), *(folder / "lib").iterdir()]:
        listed = subprocess.run(["ldd", program], env=env, capture_output=True, text=True, check=True).stdout
        for line in listed.splitlines():
            name, _, found = line.strip().partition(" => ")
            if not pathlib.Path(name).name.startswith(OF_THE_MACHINE) and not found.startswith(str(folder / "lib")):
                fail(f"{program.name} loads {line.strip()}, which is not in the folder")


def make_package(folder):
    """What looks like bitsandbytes' package."""
    (folder / "nn").mkdir(parents=True)
    metadata = folder.parent / "bitsandbytes-0.50.2.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Version: 0.50.2\n")
    for name in ("__init__.py", "nn/__init__.py", "libbitsandbytes_cuda118.so", "libbitsandbytes_cuda130.so",
                 "libbitsandbytes_cuda132.so"):  # fmt: skip
        (folder / name).write_text("")
    return folder


def check_package(folder):
    """Its Python files, its version, and its library for the first minor version of the newest major version of CUDA."""
    copied = {str(path.relative_to(folder)) for path in folder.glob("bitsandbytes*/**/*") if path.is_file()}
    wanted = {f"bitsandbytes/{name}" for name in ("__init__.py", "nn/__init__.py", "libbitsandbytes_cuda130.so")}
    if copied != wanted | {"bitsandbytes-0.50.2.dist-info/METADATA"}:
        fail(f"of bitsandbytes' package, {copied} is in the folder")


def check_python(folder, library):
    """The steps that use nibble's Python package, by a Python that has torch, with the packages of the folder but for
    bitsandbytes, which is not the real one."""
    if not library.is_file():
        print("skipped: CMake found no torch, so the folder has no Python package")
        return
    for path in (folder / "python").glob("bitsandbytes*"):
        shutil.rmtree(path)
    python = ROOT / "build" / "peers" / "bin" / "python"
    env = kernels_run.environment(folder)
    subprocess.run([python, pathlib.Path(__file__).with_name("python_steps.py"), folder], env=env, cwd="/", check=True)


def programs_of(steps):
    """The programs that steps start and that the folder must have: those that are optional once they can be built."""
    targets = (ROOT / "kernels" / "CMakeLists.txt").read_text()
    for step in steps:
        program = step.command[0]
        if program != "nvidia-smi" and (not step.optional or program in targets):
            yield program


def check_part(folder, part, out):
    steps = kernels_parts.PARTS[part]
    for program in programs_of(steps):
        if not (folder / program).is_file() and not (folder / "bin" / program).is_file():
            fail(f"{program} is not in the folder")
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OUT": str(out)}
    command = [folder / "kernels.sh", "run", folder, part]
    done = subprocess.run(command, cwd="/", env=env, capture_output=True, text=True, check=False)
    lines = list(kernels_lines.read_lines(out / f"{part}.jsonl"))
    if not lines or not lines[0].get("bitsandbytes", "").endswith("libbitsandbytes_cuda130.so"):
        fail(f"{part} does not find bitsandbytes' library: {lines[:1]}{done.stderr}")
    results = {line["step"]: line for line in lines if line.get("kind") == "step"}
    for step in steps:
        prefix = step.name.split("{name}")[0]
        own = [line for name, line in results.items() if name == step.name or (step.names and name.startswith(prefix))]
        if not own:
            fail(f"{part}: {step.name} was not run: {results.get(step.name.split('/')[0])}\n{done.stdout}{done.stderr}")
        for line in own:
            missing = step.optional and not (folder / "bin" / step.command[0]).exists()
            if line["status"] != ("left out" if missing else "no GPU"):
                fail(f"{part}: {line}\n{(out / f'{part}.log').read_text()}")
    if done.returncode != 0 or lines[-1].get("kind") != "end":
        fail(f"{part} ends with {done.returncode}: {done.stdout}{done.stderr}")
    if [line for line in lines if "name" in line]:
        fail(f"{part}: something was measured without a GPU")

    wanted = {f"{part}.jsonl", f"{part}.log", f"{part}_clocks.csv"}
    wanted |= {f"{part}_{step.log}" for step in steps if step.log}
    wanted |= {"tune_ncu_source.csv"} if part == "tune" else set()
    files = {path.name: path.stat().st_size for path in out.iterdir()}
    if set(files) != wanted or len(files) > MAX_FILES or not all(0 < size < MAX_FILE_BYTES for size in files.values()):
        fail(f"{part} leaves {files}, not {wanted}")
    return len(results)


def main():
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else temporary).resolve() / "kernels"
        package = make_package(pathlib.Path(temporary) / "bitsandbytes")
        command = [ROOT / "bench" / "kernels.sh", "build", folder, "--bitsandbytes", package]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        check_package(folder / "python")
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        if size > MAX_FOLDER_BYTES:
            fail(f"the folder has {size} bytes")
        check_libraries(folder)
        for part in kernels_parts.PARTS:
            count = check_part(folder, part, pathlib.Path(temporary) / "out" / part)
            print(f"{part}: {count} steps, each says that there is no GPU")
        print(json.dumps({"folder_bytes": size}))
        check_python(folder, folder / "lib" / "libnibble_torch.so")
    subprocess.run([sys.executable, ROOT / "tests" / "bench" / "kernels" / "kernels_runner.py"], check=True,
                   stdout=subprocess.DEVNULL)  # fmt: skip


if __name__ == "__main__":
    main()
