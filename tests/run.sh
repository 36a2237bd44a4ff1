#!/usr/bin/env bash
# Sets up and passes the tests.
#
#   tests/run.sh           everything: codecs, containers and hostile input, then the peers (transformers, ...)
#   tests/run.sh --core    without the peers: minutes
set -euo pipefail
cd "$(dirname "$0")/.."

cmake/install_dependencies.sh
cmake --preset release >/dev/null
cmake --build --preset release
ctest --preset release
[[ ${1:-} == --core ]] && exit 0

python=$(python/peers.sh)
NIBBLE=$PWD/build/release/nibble NIBBLE_TRANSFORMERS4=$PWD/build/peers/transformers4 HF_HUB_OFFLINE=1 \
  "$python" -m pytest -q -p no:cacheprovider tests/interop
