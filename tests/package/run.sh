#!/usr/bin/env bash
# Installs nibble into a folder of its own, builds the examples against it with find_package(nibble), runs them.
set -euo pipefail
cd "$(dirname "$0")/../.."

prefix=$PWD/build/package
rm -rf "$prefix"
cmake --install build/release --prefix "$prefix/installed" >/dev/null
cmake -S tests/package -B "$prefix/build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_PREFIX_PATH="$prefix/installed" >/dev/null
cmake --build "$prefix/build"
"$prefix/build/quantize_matrix" | grep -F "SQNR 20.7"
"$prefix/installed/bin/nibble" --version
# The program that was built with the installed headers converts what the tests use.
if [[ -d build/minilm/fp16 ]]; then
  "$prefix/build/convert_checkpoint" build/minilm/fp16 "$prefix/nf4" | tail -n 1
else
  echo "skipped: examples/minilm.sh has not run, so there is no model to convert"
fi
