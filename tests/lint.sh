#!/usr/bin/env bash
# clang-format on all of our sources; the syntax of all scripts; types of the Python package; includes that go one way;
# texts of the library that name no option; kernels that keep to the device layer; reference pages that are what the
# program prints; clang-tidy.
#
#   tests/lint.sh          everything
#   tests/lint.sh --quick  everything but clang-tidy, which takes nearly all of the time
#   tests/lint.sh --tidy   clang-tidy
set -euo pipefail
cd "$(dirname "$0")/.."

[[ ${1:-} =~ ^(|--quick|--tidy)$ ]] || { echo "error: unknown option $1" >&2; exit 2; }

if [[ ${1:-} != --tidy ]]; then
  mapfile -t sources < <(git ls-files '*.cpp' '*.hpp' '*.cu' '*.js')
  clang-format --dry-run -Werror "${sources[@]}"
  git ls-files -z '*.py' | xargs -0 python3 -c 'import sys
for file in sys.argv[1:]: compile(open(file, encoding="utf-8").read(), file, "exec")'
  git ls-files -z '*.sh' .ci/run .ci/full | xargs -0 -n 1 bash -n
  # Those of libstdc++ end the program where there is no memory for a name; list_directory() does not.
  if git grep -n 'std::filesystem::\(recursive_\)\?directory_iterator\|fs::\(recursive_\)\?directory_iterator' \
    -- core formats quant cli; then
    echo "error: a directory is read by an iterator of std::filesystem, not by list_directory()" >&2
    exit 1
  fi
  tools=$(python/tools.sh)
  "$tools/mypy"
  tests/arrows.py --test
  tests/arrows.py
  tests/mutation/run.py --check
  tests/library_texts.py --test
  tests/library_texts.py
  tests/kernels/bypass.py --test
  tests/kernels/bypass.py
  tests/kernels/calibrated.py --test
  tests/kernels/calibrated.py
  tests/kernels/machine_code/run.py --test
  docs/generate_reference.sh build/release/nibble --check
  tests/bench/table_test.py
  for page in README.md docs/compensation.md docs/nf4.md; do bench/table.py --check "$page"; done
  tests/bench/kernels/tune_table_test.py
  bench/kernels/tune/tune_table.py --check
  tests/bench/kernels/predictions_test.py
  tests/bench/kernels/plans_test.py build/release/tests/bench_plans
  bench/kernels/predict/predictions.py build/release/tests/bench_plans --check \
    docs/four-bit-matmul.md docs/int8-matmul.md docs/kernels-benchmark.md
fi
if [[ ${1:-} != --quick ]]; then
  # The sources as the build puts them together, which takes a quarter of the time: each of those includes many of ours.
  # The warnings of clang itself are those of the build; unknown g++ options in its database are not ours.
  cmake -S . -B build/lint -G Ninja -DCMAKE_BUILD_TYPE=Release -DNIBBLE_CUDA=OFF -DNIBBLE_FEW_TARGETS=ON \
    -DNIBBLE_PYTHON=ON -DNIBBLE_TESTS=OFF -DNIBBLE_TORCH=OFF >/dev/null
  python3 -c '
import json
for entry in json.load(open("build/lint/compile_commands.json")):
    if "_jsonl.cpp" not in entry["file"] and "_page.cpp" not in entry["file"]:
        print(entry["file"])
' | xargs -d '\n' -n 1 -P "$(nproc)" clang-tidy -p build/lint --quiet --checks=-bugprone-suspicious-include \
    --extra-arg=-Wno-unknown-warning-option 2>/dev/null
fi
