#!/usr/bin/env bash
# What the release build cannot run: the codecs for ARM (NEON, under qemu), and everything that writes bytes built by
# clang, whose conversions must be those of g++. The release build is there already (tests/run.sh).
set -euo pipefail
cd "$(dirname "$0")/.."

cmake/install_dependencies.sh --tools --aarch64

echo "NEON"
cmake --preset aarch64 >/dev/null
cmake --build --preset aarch64
ctest --preset aarch64 --quiet

echo "clang"
cmake --preset clang >/dev/null
cmake --build --preset clang --target nibble nibble_codec_tests
build/clang/tests/nibble_codec_tests --gtest_brief=1
NIBBLE_PEER=$PWD/build/clang/nibble build/release/tests/nibble_tests --gtest_filter='*/Determinism.*' --gtest_brief=1
