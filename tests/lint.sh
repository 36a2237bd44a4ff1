#!/usr/bin/env bash
# clang-format and clang-tidy on all of our sources; kernels that keep to the device layer; reference pages that are what
# the program prints.
set -euo pipefail
cd "$(dirname "$0")/.."

mapfile -t sources < <(git ls-files '*.cpp' '*.hpp' '*.cu' '*.js')
clang-format --dry-run -Werror "${sources[@]}"
tests/kernels/bypass.py --test
tests/kernels/bypass.py
tests/kernels/machine_code.py --test
docs/generate_reference.sh build/release/nibble --check
mapfile -t compiled < <(git ls-files 'cli/*.cpp' 'formats/*.cpp' 'quant/*.cpp')
# The warnings of clang itself are those of the build; unknown g++ options in its database are not ours.
printf '%s\0' "${compiled[@]}" | xargs -0 -n 4 -P "$(nproc)" \
  clang-tidy -p build/release --quiet --extra-arg=-Wno-unknown-warning-option 2>/dev/null
