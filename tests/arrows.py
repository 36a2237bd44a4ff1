#!/usr/bin/env python3
"""Private headers are included one way: never from a folder above (docs/architecture.md). Public headers, which alone
are installed, include none of them. Prints the includes that do otherwise.

    tests/arrows.py          checks the sources
    tests/arrows.py --test   checks that a wrong include would be found
"""

import pathlib
import re
import sys

# From the lowest to the highest. Folders on one level do not use each other. Kernels are a tree of their own.
TREES = [
    [
        ["core/text"],
        ["core"],
        ["core/memory"],
        ["core/files"],
        ["formats", "quant/simd"],
        ["quant/codecs"],
        ["quant/errors", "quant/matmul"],
        ["quant/quantizers", "quant/merge"],
        ["quant/schemes"],
        ["quant/stream"],
        ["quant/jobs/plan"],
        ["quant/jobs/convert", "quant/jobs/measure", "quant/jobs/advise", "quant/jobs/dequantize"],
        ["quant/jobs/merge"],
        ["cli/terminal"],
        ["cli/options", "cli/measurement"],
        ["cli"],
        ["python/c_api"],
    ],
    [
        ["kernels/device"],
        ["kernels"],
        ["kernels/matmul"],
        ["kernels/matmul/four_bit", "kernels/matmul/int8", "kernels/quantize"],
        ["kernels/host"],
        ["kernels/host/matmul"],
        ["kernels/host/library"],
        ["kernels/host/matmul/four_bit", "kernels/host/matmul/int8", "kernels/host/quantize"],
    ],
]
LEVEL = {folder: (tree, level) for tree, levels in enumerate(TREES) for level, folders in enumerate(levels)
         for folder in folders}  # fmt: skip
# Between the trees: the C interface by which a conversion uses a device.
BETWEEN = {("quant/quantizers", "kernels/host/device_interface.h")}
# Public headers that a folder must not know, although it may include all others: a codec is arithmetic and sizes.
JOBS = r"advise|checkpoint|convert|dequantize|device|matmul|measure|merge|plan|recipe|role|weights"
BARRED = {
    "quant/codecs": re.compile(rf"nibble/({JOBS}|error_sums|metrics)\.hpp"),
    "quant/matmul": re.compile(rf"nibble/({JOBS.replace('matmul|', '')}|error_sums|metrics)\.hpp"),
    "quant/simd": re.compile(rf"nibble/({JOBS}|error_sums|metrics)\.hpp"),
}
PUBLIC = "include/"
# What public headers include besides each other and the C++ standard library, whose headers have no dot and no folder.
# Whoever includes such a header needs that library.
LIBRARIES = {
    "include/nibble/c_api.h": re.compile(r"(stddef|stdint)\.h"),
    "include/nibble/kernels.h": re.compile(r"(stddef|stdint)\.h"),
    "include/nibble/xtensor.hpp": re.compile(r"xtensor/\w+\.hpp"),
}
SUFFIXES = {".cpp", ".hpp", ".cu", ".h"}
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
INCLUDE_OF_ANY_FORM = re.compile(r'^\s*#\s*include\s+(["<][^">]+[">])', re.MULTILINE)


def folder_of(path):
    return max((folder for folder in LEVEL if path.startswith(folder + "/")), key=len, default=None)


def wrong_includes(path, text):
    own = folder_of(path)
    for included in INCLUDE.findall(text):
        if own in BARRED and BARRED[own].fullmatch(included):
            yield f"{path} includes {included}, which {own} must not know"
        if included.startswith("tests/"):
            yield f"{path} includes {included}, which is a part of the tests"
        other = folder_of(included)
        if other in (None, own) or (own, included) in BETWEEN:
            continue
        (tree, level), (other_tree, other_level) = LEVEL[own], LEVEL[other]
        if other_tree != tree or other_level >= level:
            yield f"{path} includes {included}"


def wrong_in_public(path, text, public):
    for included in INCLUDE_OF_ANY_FORM.findall(text):
        name = included[1:-1]
        own = included[0] == '"' and PUBLIC + name in public
        standard = included[0] == "<" and re.fullmatch(r"\w+", name)
        library = included[0] == "<" and path in LIBRARIES and LIBRARIES[path].fullmatch(name)
        if not (own or standard or library):
            yield f"{path} includes {included}, which is neither public nor of the standard library"


def main():
    if sys.argv[1:] == ["--test"]:
        assert list(wrong_includes("quant/codecs/a.cpp", '#include "quant/schemes/b.hpp"\n')) != []
        assert list(wrong_includes("quant/codecs/a.cpp", '#include "nibble/error_sums.hpp"\n')) != []
        assert list(wrong_includes("quant/errors/a.cpp", '#include "nibble/error_sums.hpp"\n')) == []
        assert list(wrong_includes("formats/a.cpp", '#include "quant/simd/b.hpp"\n')) != []
        assert list(wrong_includes("kernels/host/a.cu", '#include "core/b.hpp"\n')) != []
        assert list(wrong_includes("kernels/device/a.hpp", '#include "tests/simulator/b.hpp"\n')) != []
        assert list(wrong_includes("kernels/a.hpp", '#include "kernels/host/b.hpp"\n')) != []
        assert list(wrong_includes("quant/quantizers/a.cpp", '#include "kernels/a.hpp"\n')) != []
        assert list(wrong_includes("kernels/host/a.cu", '#include "kernels/device/b.hpp"\n')) == []
        assert list(wrong_includes("cli/a.cpp", '#include "quant/codecs/b.hpp"\n#include "core/c.hpp"\n')) == []
        public = ["include/nibble/a.hpp", "include/nibble/xtensor.hpp"]
        for wrong in ['"core/b.hpp"', '"nibble/b.hpp"', '"b.hpp"', "<nibble/a.hpp>", "<fmt/format.h>", "<unistd.h>",
                      "<xtensor/xview.hpp>"]:  # fmt: skip
            assert list(wrong_in_public(public[0], f"#pragma once\n# include {wrong}\n", public)) != [], wrong
        right = '#include <memory>\n#include "nibble/xtensor.hpp"\n'
        assert list(wrong_in_public(public[0], right, public)) == []
        assert list(wrong_in_public(public[1], "#include <xtensor/xview.hpp>\n", public)) == []
        return 0
    root = pathlib.Path(__file__).parent.parent
    sources = {path for folder in LEVEL for path in (root / folder).rglob("*") if path.suffix in SUFFIXES}
    found = [wrong for path in sorted(sources) for wrong in wrong_includes(str(path.relative_to(root)), path.read_text())]
    public = {path.relative_to(root).as_posix() for path in (root / PUBLIC).rglob("*") if path.is_file()}
    found += [wrong for path in sorted(public) for wrong in wrong_in_public(path, (root / path).read_text(), public)]
    print("\n".join(found), end="\n" if found else "")
    return 1 if found or not sources or not public else 0


sys.exit(main())
