#!/usr/bin/env bash
# Puts HQQ and llm-compressor into build/quantizers, once: bench/search.py and bench/compensation.py compare with them.
# They share the packages of build/peers (python/peers.sh makes it), and are not among them, because llm-compressor's
# compressed-tensors is older. 11 MB.
set -euo pipefail
cd "$(dirname "$0")/../.."

pinned=bench/peers/quantizers.txt
peer=build/quantizers
cmp --silent "$pinned" "$peer/quantizers.txt" && exit 0  # copied last
rm -rf "$peer"
# DISABLE_CUDA: HQQ's setup.py does not compile its kernels.
DISABLE_CUDA=1 build/peers/bin/pip install --disable-pip-version-check --no-deps --target "$peer" -r "$pinned" >&2
cp "$pinned" "$peer"
