#!/usr/bin/env bash
# The main job on a real model: installs what is needed, builds nibble, converts all-MiniLM-L6-v2 to NF4, int8 and
# fp16, loads each result with transformers, and prints sizes, times and errors.
#
#   examples/minilm.sh [DIR]    puts the model (DIR/all-MiniLM-L6-v2) and the results into DIR [build/minilm]
set -euo pipefail
cd "$(dirname "$0")/.."

step() { printf '== %d of 4, after %d s: %s\n' "$1" "$SECONDS" "$2"; }

step 1 "Debian's packages"
cmake/install_dependencies.sh
step 2 "building nibble"
cmake --preset release >/dev/null
cmake --build --preset release --target nibble
step 3 "Python packages that load the results, in build/peers"
python=$(python/peers.sh --loading)
step 4 "converting, loading, comparing"
HF_HUB_OFFLINE=1 "$python" examples/minilm.py --nibble build/release/nibble --out "${1:-build/minilm}"
