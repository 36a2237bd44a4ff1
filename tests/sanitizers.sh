#!/usr/bin/env bash
# The tests under AddressSanitizer and UndefinedBehaviorSanitizer.
#
#   tests/sanitizers.sh            what reads input, and the codecs on two CPU targets
#   tests/sanitizers.sh --kernels  the kernels in the simulator, and the conversions that use them
#   tests/sanitizers.sh --full     all tests, and the codecs on every target
set -euo pipefail
cd "$(dirname "$0")/.."

# Conversions that are the same on every CPU target, a target that is not built, and tests that fork or compute for
# minutes here. A limit of addresses leaves no room for the sanitizer's own.
limited=Program.FewerThreadsThanWereAskedForDoTheWork
device=Devices.*:DeviceOption.*
simulated=(nibble_cuda_simulated nibble_cuda_of_tomorrow nibble_cuda_incomplete)
preset=asan libraries=() programs=(nibble_tests nibble_codec_tests nibble_c_api_tests)
long=*CrashTest.*:ScaleSearch.LeavesNearlyTheLeastErrorOfAllScales:MeasureProgram.ManifestsHaveTheSameFigures
filter=-*/Determinism.*:Target.ScalarAndTheBaseline*:$long:$limited:$device
case ${1:-} in
  '') ;;
  --kernels) libraries=("${simulated[@]}") programs=(nibble_kernel_tests nibble_tests) filter=* ;;
  --full) preset=asan-full libraries=("${simulated[@]}") programs+=(nibble_kernel_tests) filter=-$limited ;;
  *) echo "error: unknown option $1" >&2; exit 2 ;;
esac
cmake --preset release >/dev/null
cmake --build --preset release --target nibble_tests nibble_codec_tests nibble_c_api_tests  # their objects are linked
cmake --preset $preset -DNIBBLE_TEST_OBJECTS="$PWD/build/release" >/dev/null
cmake --build --preset $preset --target "${libraries[@]}" "${programs[@]}"

# In as many processes as there are processors: with one for each test, most of the time would go into starting them.
export UBSAN_OPTIONS=print_stacktrace=1 GTEST_TOTAL_SHARDS
# A sanitizer opens libraries in the program's stead, and then the program's own path to them does not count.
export LD_LIBRARY_PATH=$PWD/build/$preset/tests/simulator
export LSAN_OPTIONS=print_suppressions=0:suppressions=$PWD/tests/lsan.supp
GTEST_TOTAL_SHARDS=$(nproc)
failed=0
for program in "${programs[@]}"; do
  selected=$filter
  [[ ${1:-} != --kernels || $program != nibble_tests ]] || selected=$device
  tests=$(env -u GTEST_TOTAL_SHARDS "build/$preset/tests/$program" --gtest_list_tests --gtest_filter="$selected")
  [[ $tests == *$'\n  '* ]] || { echo "error: $program has no test of $selected" >&2; exit 1; }
  running=()
  for ((shard = 0; shard < GTEST_TOTAL_SHARDS; ++shard)); do
    GTEST_SHARD_INDEX=$shard "build/$preset/tests/$program" --gtest_brief=1 --gtest_filter="$selected" &
    running+=($!)
  done
  for pid in "${running[@]}"; do wait "$pid" || failed=1; done
done
exit $failed
