#!/usr/bin/env python3
"""Finds functions of the device layer that no calibration calls, whose results on a GPU nobody compares with the
simulator's.

    tests/kernels/calibrated.py            those of kernels/device/cuda
    tests/kernels/calibrated.py --test     whether planted examples are found
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LAYER = ROOT / "kernels" / "device" / "cuda"
TESTS = ROOT / "tests" / "kernels"


def functions(text):
    """The functions that a header of the layer declares for kernels, without those of its namespace detail."""
    text = re.sub(r"^namespace detail \{.*?^\}  // namespace detail", "", text, flags=re.S | re.M)
    return set(re.findall(r"^(?:template <[^\n]*> )?NIBBLE_DEVICE [^\n(]*?(\w+)\(", text, flags=re.M))


def missing(layer, calibration):
    """The functions of the headers `layer` whose names are not in the sources `calibration`, comments left out."""
    called = set(re.findall(r"\w+", re.sub(r"//[^\n]*", "", "\n".join(calibration))))
    return sorted(set().union(*map(functions, layer)) - called)


def calibration_sources():
    """The sources of nibble_calibrate, with the kernels of the layer's tests that they include."""
    sources = [path.read_text(encoding="utf-8") for path in TESTS.glob("calibration*.cu")]
    included = re.findall(r'#include "(tests/kernels/device/\w+\.hpp)"', "\n".join(sources))
    return sources + [(ROOT / name).read_text(encoding="utf-8") for name in included]


def test():
    """Fails unless the functions of a planted header are found."""
    header = (
        "NIBBLE_DEVICE u32 plain(u32 value) { return other(value); }\n"
        "template <class T> NIBBLE_DEVICE std::remove_const_t<T> load(Global<T> at) {\n}\n"
        "namespace detail {\nNIBBLE_DEVICE void inside() {}\n}  // namespace detail\n"
        "class Pointer {\n  NIBBLE_DEVICE u32 address() const { return 0; }\n};\n"
        "NIBBLE_DEVICE void fence() {\n}\n"
    )
    found = missing([header], ["other(in + i);  // not a fence\n"])
    if found == ["fence", "load", "plain"]:
        return 0
    print(f"found {found}")
    return 1


def main(arguments):
    """Prints the functions; the exit code says whether there are any."""
    if arguments == ["--test"]:
        return test()
    layer = [path.read_text(encoding="utf-8") for path in LAYER.rglob("*.hpp")]
    found = missing(layer, calibration_sources())
    for name in found:
        print(f"no calibration calls {name}()")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
