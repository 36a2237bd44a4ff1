#!/usr/bin/env bash
# Sets up and passes the tests.
#
#   tests/run.sh           everything: also the kernels under the simulator, and the peers (transformers, ...)
#   tests/run.sh --core    codecs, containers, the command line, hostile input: 5 minutes on two cores from nothing
set -euo pipefail
cd "$(dirname "$0")/.."

cmake/install_dependencies.sh
cmake --preset release >/dev/null
if [[ ${1:-} == --core ]]; then
  cmake --build --preset release --target nibble nibble_tests nibble_codec_tests
  ctest --preset release --label-regex '^core$'
  exit
fi
cmake --build --preset release
ctest --preset release

python=$(python/peers.sh)
NIBBLE=$PWD/build/release/nibble NIBBLE_TRANSFORMERS4=$PWD/build/peers/transformers4 HF_HUB_OFFLINE=1 \
  "$python" -m pytest -q -p no:cacheprovider tests/interop
