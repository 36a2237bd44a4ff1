#!/usr/bin/env bash
# What the release build cannot run. It has to be there already (tests/run.sh).
#
#   tests/targets.sh aarch64  the codecs for 64-bit ARM (NEON, under qemu)
#   tests/targets.sh clang    everything that writes bytes built by clang, one source at a time; its conversions must be
#                             those of g++
#   tests/targets.sh          both
set -euo pipefail
cd "$(dirname "$0")/.."

if [[ ${1:-aarch64} == aarch64 ]]; then
  cmake/install_dependencies.sh --aarch64
  cmake --preset aarch64 >/dev/null
  cmake --build --preset aarch64
  export GTEST_TOTAL_SHARDS
  GTEST_TOTAL_SHARDS=$(nproc)
  seq 0 $((GTEST_TOTAL_SHARDS - 1)) | xargs -P "$GTEST_TOTAL_SHARDS" -I{} env GTEST_SHARD_INDEX={} \
    qemu-aarch64-static -L /usr/aarch64-linux-gnu build/aarch64/tests/nibble_codec_tests --gtest_brief=1
  unset GTEST_TOTAL_SHARDS
fi
if [[ ${1:-clang} == clang ]]; then
  cmake/install_dependencies.sh --tools
  cmake --preset clang >/dev/null
  cmake --build --preset clang --target nibble nibble_codec_tests
  build/clang/tests/nibble_codec_tests --gtest_brief=1
  NIBBLE_PEER=$PWD/build/clang/nibble build/release/tests/nibble_tests --gtest_filter='*/Determinism.*' --gtest_brief=1
fi
