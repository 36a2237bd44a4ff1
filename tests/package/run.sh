#!/usr/bin/env bash
# Installs nibble into a folder of its own, builds the examples against it with find_package(nibble), and a program in C
# with pkg-config; runs them.
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
# A program in C, with what pkg-config says of the installation and nothing of the repository's.
export PKG_CONFIG_PATH=$prefix/installed/lib/pkgconfig
read -ra flags < <(pkg-config --cflags --libs nibble)
cc -std=c11 -Wall -Wextra -Wpedantic -Werror -o "$prefix/c11" tests/python/c_api/c11.c "${flags[@]}" -lm \
  -Wl,-rpath,"$(pkg-config --variable=libdir nibble)"
"$prefix/c11"
# The kernels' library loads alone, and says what is wrong with a call; without a CUDA compiler there is none.
library=$(find "$prefix/installed" -name libnibble_cuda.so)
if [[ -n $library ]]; then
  python3 tests/package/kernels.py "$library"
else
  echo "skipped: built without a CUDA compiler, so there is no libnibble_cuda"
fi
# The program that was built with the installed headers converts what the tests use.
if [[ -d build/minilm/fp16 ]]; then
  "$prefix/build/convert_checkpoint" build/minilm/fp16 "$prefix/nf4" | tail -n 1
  "$prefix/build/read_weights" "$prefix/nf4" encoder.layer.0.output.dense.weight
else
  echo "skipped: examples/minilm.sh has not run, so there is no model to convert"
fi
