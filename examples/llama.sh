#!/usr/bin/env bash
# How much worse quantization makes a language model: trains a small Llama (once, some minutes), quantizes it and
# all-MiniLM-L6-v2 with nibble and with bitsandbytes, measures each with nibble.evaluate, and fills in docs/evaluate.md.
#
#   examples/llama.sh                           in build/llama
#   examples/llama.sh DIR --hidden 512 --steps 4000 --batch 16    options of train_llama.py, for a machine with a GPU
set -euo pipefail
cd "$(dirname "$0")/.."

out=${1:-build/llama}
cmake/install_dependencies.sh
cmake --preset release >/dev/null
cmake --build --preset release --target nibble
python=$(python/peers.sh)
export HF_HUB_OFFLINE=1 PYTHONPATH=python
[[ -f $out/fp32/training.json ]] || "$python" examples/train_llama.py --out "$out/fp32" "${@:2}"
"$python" examples/llama.py --nibble build/release/nibble --model "$out/fp32" --out "$out"
bench/table.py --write docs/evaluate.md
