#!/usr/bin/env bash
# The tests under AddressSanitizer and UndefinedBehaviorSanitizer. By default those of what reads input, of the codecs
# on two CPU targets, and of the kernels in the simulator; --full: all tests, and the codecs on every target.
set -euo pipefail
cd "$(dirname "$0")/.."

# Conversions that are the same on every CPU target, and a target that is not built. A limit of addresses leaves no room
# for the sanitizer's own.
limited=Program.FewerThreadsThanWereAskedForDoTheWork
preset=asan filter=-*/Determinism.*:Target.ScalarAndTheBaseline*:$limited
if [[ ${1:-} == --full ]]; then preset=asan-full filter=-$limited; fi
cmake --preset $preset >/dev/null
cmake --build --preset $preset

# In as many processes as there are processors: with one for each test, most of the time would go into starting them.
export UBSAN_OPTIONS=print_stacktrace=1 GTEST_TOTAL_SHARDS
# A sanitizer opens libraries in the program's stead, and then the program's own path to them does not count.
export LD_LIBRARY_PATH=$PWD/build/$preset/tests/simulator
export LSAN_OPTIONS=print_suppressions=0:suppressions=$PWD/tests/lsan.supp
GTEST_TOTAL_SHARDS=$(nproc)
failed=0
for program in nibble_tests nibble_codec_tests nibble_kernel_tests nibble_c_api_tests; do
  running=()
  for ((shard = 0; shard < GTEST_TOTAL_SHARDS; ++shard)); do
    GTEST_SHARD_INDEX=$shard "build/$preset/tests/$program" --gtest_brief=1 --gtest_filter="$filter" &
    running+=($!)
  done
  for pid in "${running[@]}"; do wait "$pid" || failed=1; done
done
exit $failed
