#!/usr/bin/env bash
# Sets up and passes the tests.
#
#   tests/run.sh           everything: also the kernels under the simulator, and the peers (transformers, ...)
#   tests/run.sh --core    codecs, containers, the command line, hostile input: 5 minutes on two cores from nothing
set -euo pipefail
cd "$(dirname "$0")/.."

cmake/install_dependencies.sh
if [[ ${1:-} == --core ]]; then
  cmake --preset release >/dev/null
  cmake --build --preset release --target nibble nibble_tests nibble_codec_tests
  ctest --preset release --label-regex '^core$'
  exit
fi
python=$(python/peers.sh)
cmake --preset release -DNIBBLE_PYTHON_WITH_TORCH="$python" >/dev/null
cmake --build --preset release
ctest --preset release

export NIBBLE=$PWD/build/release/nibble NIBBLE_TRANSFORMERS4=$PWD/build/peers/transformers4 HF_HUB_OFFLINE=1
# One file at a time in each of as many processes as there are processors, up to eight: each imports torch.
pytest=("$python" -m pytest -q -p no:cacheprovider -n "$(nproc)" --maxprocesses 8 --dist loadfile)
"${pytest[@]}" tests/interop
PYTHONPATH=$PWD/python "${pytest[@]}" tests/python
