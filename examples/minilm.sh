#!/usr/bin/env bash
# The main job on a real model: installs what is needed, builds nibble, converts all-MiniLM-L6-v2 to NF4, int8 and
# fp16, loads each result with transformers, and prints what it cost.
set -euo pipefail
cd "$(dirname "$0")/.."

cmake/install_dependencies.sh
cmake --preset release >/dev/null
cmake --build --preset release --target nibble
python=$(python/peers.sh)
HF_HUB_OFFLINE=1 "$python" examples/minilm.py --nibble build/release/nibble --out "${1:-build/minilm}"
