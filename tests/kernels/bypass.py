#!/usr/bin/env python3
"""Finds what in kernels goes around the device layer: raw pointers, CUDA's own names, inline assembly.

    tests/kernels/bypass.py [file ...]     the files; without any, kernels/*.hpp, *.cpp and *.cu
    tests/kernels/bypass.py --test         whether planted examples are found

The simulator checks what a kernel does through Global<T>, Shared<T> and the layer's functions. An access beside them
would compile, run, and be checked by nobody. Sources are formatted, so `T* p` declares and `a * b` multiplies.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# In all of a file: names of CUDA, which have wrappers or are the layer's own.
ANYWHERE = [
    (r"\b(?:threadIdx|blockIdx|blockDim|gridDim|warpSize)\b", "an index of CUDA's"),
    (
        r"\b__(?!attribute__\b|has_include\b|cplusplus\b|restrict\b|int128\b|builtin_bit_cast\b)\w+",
        "a name of CUDA's or the compiler's",
    ),
    (r"\basm\b", "inline assembly"),
    (r"<<<", "a launch beside launch()"),
    (r"\bcuda[A-Z]\w*\s*\(", "a call of CUDA's runtime"),
    (r"#\s*include\s*[<\"](?:cuda|mma|cooperative_groups)", "a header of CUDA's"),
    (r"\b(?:unchecked|checked|region)\s*\(", "the inside of a checked pointer"),
    (r"\bsimulator::", "the simulator"),
    (r"#\s*include\s*\"tests/", "a header of the tests"),
]

# In kernels and in functions for the device: pointers that nothing checks.
ON_THE_DEVICE = [
    (r"[\w>]\*+\s*(?:const\s+)?\w", "a raw pointer"),
    (r"[\w>]\*+\s*[,>);]", "a raw pointer"),
    (r"(?<=[=(,;{!?:&|])\s*\*\s*\w", "a raw pointer's target"),
    (r"\w\s*->\s*\w", "a raw pointer's target"),
    (r"\b(?:reinterpret_cast|const_cast)\b", "a cast that hides what is accessed (as<T>() and bits_of() do not)"),
    (r"\b(?:memcpy|memset|new|delete|malloc|free)\b", "memory beside the layer"),
    (r"\bvolatile\b", "volatile"),
    (r"\bspan\s*<", "a span, which nothing checks"),
    (r"\bdetail::", "the inside of the layer"),
    (r"\batomic[A-Z]\w*\s*\(", "an atomic of CUDA's"),
]


def without_comments(text):
    """The text with comments and strings blanked, lines kept."""
    pattern = r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\''

    def blank(match):
        return match[0] if match[0].startswith('"') and text[: match.start()].rstrip().endswith("include") else re.sub(
            r"[^\n]", " ", match[0]
        )

    return re.sub(pattern, blank, text, flags=re.S)


def closing(text, opening):
    """The position after the brace that closes the one at `opening`."""
    depth = 0
    for at in range(opening, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return at + 1
    return len(text)


def device_parts(text, held_by_kernels):
    """(begin, end) of functions marked NIBBLE_DEVICE, of structs that have one, and of names for pointers."""
    for mark in re.finditer(r"\bNIBBLE_DEVICE(?:_AND_HOST)?\b", text):
        brace = text.find("{", mark.end())
        if brace >= 0:
            yield mark.start(), closing(text, brace)
    for struct in re.finditer(r"\b(?:struct|class)\s+\w+[^;{()]*\{", text):
        end = closing(text, struct.end() - 1)
        if held_by_kernels or "NIBBLE_DEVICE" in text[struct.end() : end]:
            yield struct.start(), end
    for alias in re.finditer(r"\busing\s+\w+\s*=[^;]*\*\s*(?=;)", text):
        yield alias.start(), alias.end() + 2


def findings(text, held_by_kernels=True):
    """(line, what, source) of each way around the layer. `held_by_kernels`: any struct may be part of a kernel."""
    source, text = text.split("\n"), without_comments(text)
    found = set()

    def search(rules, begin, end):
        for pattern, what in rules:
            for match in re.finditer(pattern, text[begin:end]):
                start = begin + match.start() + len(match[0]) - len(match[0].lstrip())
                line = text.count("\n", 0, start)
                found.add((line + 1, what, source[line].strip()))

    search(ANYWHERE, 0, len(text))
    for begin, end in device_parts(text, held_by_kernels):
        search(ON_THE_DEVICE, begin, end)
    return sorted(found)


GOOD = """
#include "kernels/device/device.hpp"
// threadIdx, asm and float* p in a comment; "__shared__" in a string
template <class T> struct Kernel {
  static constexpr u32 threads = 64;
  Global<const float> in;
  T out;
  NIBBLE_DEVICE void operator()() const {
    const auto square = [&](i64 i) -> float { return ld(in + i * 2) * ld(in + i); };
    st(out + 1, square(2) * 2.0f && 3 * threads);
  }
};
int nibble_run(const float* in, float* out) { return launch({1}, 0, nullptr, Kernel<float>{in, out}); }
"""

BAD = [
    "NIBBLE_DEVICE float f(const float* p) { return 0; }",
    "NIBBLE_DEVICE float f(Global<float> p) { return *p.unchecked(); }",
    "struct K { float* p; NIBBLE_DEVICE void operator()() const {} };",
    "NIBBLE_DEVICE u32 f() { return threadIdx.x; }",
    "NIBBLE_DEVICE void f() { __syncthreads(); }",
    "NIBBLE_DEVICE void f() { __shared__ float x[3]; }",
    'NIBBLE_DEVICE void f() { asm volatile("bar.sync 0;"); }',
    "NIBBLE_DEVICE float f(Box b) { return b->x; }",
    "NIBBLE_DEVICE float f() { return reinterpret_cast<float&>(x); }",
    "NIBBLE_DEVICE void f() { const auto g = [&] { x = *y; }; }",
    "void f() { run<<<1, 2>>>(); }",
    "void f() { cudaMemcpy(a, b, 3); }",
    "#include <cuda_fp16.h>",
    '#include "tests/simulator/options.hpp"',
    "struct Operand { const float* p; };",
    "using P = float*;",
    "struct K { std::span<const float> s; NIBBLE_DEVICE void operator()() const {} };",
    "NIBBLE_DEVICE_AND_HOST float f(const float* p) { return 0; }",
    "NIBBLE_DEVICE void f() { atomicAdd(x, 1); }",
    "NIBBLE_DEVICE void f() { detail::load_words<16>(p); }",
]


def test():
    """Fails unless each bad example is found and the good one passes."""
    missed = [text for text in BAD if not findings(text)]
    false = findings(GOOD)
    for text in missed:
        print(f"not found: {text}")
    for line, what, source in false:
        print(f"found without cause: {line}: {what}: {source}")
    return 1 if missed or false else 0


def main(arguments):
    """Prints what is found in the files; the exit code says whether there is anything."""
    if arguments == ["--test"]:
        return test()
    if not arguments:
        listed = subprocess.run(
            ["git", "ls-files", "kernels/*.hpp", "kernels/*.cpp", "kernels/*.cu"], cwd=ROOT, check=True, text=True,
            capture_output=True,
        ).stdout.split()
        arguments = [ROOT / name for name in listed if not name.startswith("kernels/device/")]
    count = 0
    for path in map(Path, arguments):
        # Structs of kernels/host launch kernels; none is part of one, as kernels include no header of that folder.
        held_by_kernels = path.suffix == ".hpp" and "kernels/host/" not in path.as_posix()
        for line, what, source in findings(path.read_text(encoding="utf-8"), held_by_kernels):
            count += 1
            print(f"{path}:{line}: {what}: {source}")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
