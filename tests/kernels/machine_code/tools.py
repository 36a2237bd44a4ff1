"""Where cuobjdump and nvdisasm are, and what they print."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def output_of(*command, **options):
    """What a command prints; fails as the command does."""
    return subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True, **options).stdout


def tools():
    """The folder of cuobjdump and nvdisasm: both have to be there, since one calls the other."""

    def complete(folder):
        return all((folder / tool).is_file() for tool in ("cuobjdump", "nvdisasm"))

    def in_packages(packages):
        return packages / "triton" / "backends" / "nvidia" / "bin"

    folders = [Path(found).parent for found in (shutil.which("cuobjdump"), shutil.which("nvcc")) if found]
    folders += [Path(os.environ.get("CUDA_PATH", "/usr/local/cuda")) / "bin"]
    if spec := importlib.util.find_spec("triton"):
        folders.append(in_packages(Path(spec.origin).parents[1]))
    environment = ROOT / "build" / "cuda_tools"
    folders += map(in_packages, environment.glob("lib/python3*/site-packages"))
    for folder in folders:
        if complete(folder):
            return folder
    print("cuobjdump and nvdisasm are not here: installing triton, which has them, into build/cuda_tools")
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    subprocess.run([environment / "bin" / "pip", "install", "-q", "triton"], check=True)
    folder = in_packages(next(environment.glob("lib/python3*/site-packages")))
    if not complete(folder):
        sys.exit(f"error: {folder} has no cuobjdump and nvdisasm")
    return folder


def cuobjdump(folder, option, file):
    """What cuobjdump prints of a library or an object."""
    environment = dict(os.environ, PATH=f"{folder}{os.pathsep}{os.environ['PATH']}")
    return output_of(folder / "cuobjdump", option, file, env=environment)


def short_names(symbols):
    """`FourBitDequantize<bf16, 0>` for the symbol of device::run<...>."""
    names = output_of("c++filt", input="\n".join(symbols)).splitlines()
    return {symbol: short_name(name) for symbol, name in zip(symbols, names)}


def short_name(name):
    """The demangled name without the layer's template, namespaces and casts of enumerators."""
    if match := re.fullmatch(r"void nibble::device::run<(.*)>\(.*\)", name):
        name = match[1].strip()
    name = re.sub(r"\((?:[\w:]|\(anonymous namespace\))+\)(?=\d|true|false)", "", name)
    name = re.sub(r"(?:\(anonymous namespace\)|nibble|kernels|device)::", "", name)
    return name.replace(" >", ">")
