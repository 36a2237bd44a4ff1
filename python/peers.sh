#!/usr/bin/env bash
# Makes a Python environment in build/peers, once, from pinned versions, and prints the path of its python.
#
#   python/peers.sh --loading  what loads nibble's output, and the model of examples/minilm.sh (4.5 GB; much less with
#                              CPU-only torch)
#   python/peers.sh            that, and what the tests compare with: peft, sentence-transformers, pytest; and in folders
#                              of their own transformers 4.57 (build/peers/transformers4) and trl (build/peers/trl) (6 GB)
#
# CPU-only torch comes from PyTorch's own index, which is tried first unless there is an NVIDIA device;
# NIBBLE_TORCH_INDEX names another. PyPI's torch has CUDA and needs 3 GB of its libraries on any machine.
set -euo pipefail
cd "$(dirname "$0")/.."
exec 3>&1 >&2  # stdout is for the path alone

peers=build/peers
install() { "$peers/bin/pip" install --disable-pip-version-check "$@"; }
pinned() { install -c python/constraints.txt "$@"; }

cpu_only_torch() {
  local index=${NIBBLE_TORCH_INDEX:-https://download.pytorch.org/whl/cpu}
  echo "asking $index for CPU-only torch"
  pinned --quiet --no-deps --index-url "$index" --retries 0 --timeout 15 torch 2>/dev/null
}

stamp=$(cat python/constraints.txt python/{loading,cuda,requirements,transformers4}.txt | sha256sum)
if [[ ! -f $peers/loading || $(<"$peers/loading") != "$stamp" ]]; then
  rm -rf "$peers"
  python3 -m venv "$peers"
  if [[ -e /dev/nvidiactl ]] || ! cpu_only_torch; then
    echo "torch with CUDA from PyPI, a download of 2 GB, which pip then unpacks in silence for minutes"
    pinned --no-deps -r python/cuda.txt
  fi
  pinned --no-deps -r python/loading.txt
  echo "$stamp" >"$peers/loading"
fi
if [[ ${1:-} != --loading && ! -f $peers/complete ]]; then
  echo "installing what the tests compare with into $peers (1.5 GB more)"
  pinned -r python/loading.txt -r python/requirements.txt
  install --no-deps --target "$peers/transformers4" -r python/transformers4.txt
  echo "$stamp" >"$peers/complete"
fi
if [[ ${1:-} != --loading ]] && ! cmp --silent python/trl.txt "$peers/trl/trl.txt"; then
  rm -rf "$peers/trl"
  install --no-deps --target "$peers/trl" -r python/trl.txt
  cp python/trl.txt "$peers/trl"
fi
echo "$PWD/$peers/bin/python" >&3
