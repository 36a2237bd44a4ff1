#!/usr/bin/env bash
# Makes the environment of the peers (torch, transformers, bitsandbytes, peft: about 6 GB) in build/peers, once, from
# one pinned file, and prints the path of its python. transformers 4.57 goes to build/peers/transformers4.
set -euo pipefail
cd "$(dirname "$0")/.."

peers=build/peers
stamp=$(cat python/constraints.txt python/requirements.txt python/transformers4.txt | sha256sum)
if [[ ! -f $peers/stamp || $(<"$peers/stamp") != "$stamp" ]]; then
  echo "installing the peers into $peers (about 6 GB)" >&2
  rm -rf "$peers"
  python3 -m venv "$peers"
  "$peers/bin/pip" install --quiet --disable-pip-version-check -r python/requirements.txt -c python/constraints.txt >&2
  "$peers/bin/pip" install --quiet --disable-pip-version-check --no-deps --target "$peers/transformers4" \
      -r python/transformers4.txt >&2
  echo "$stamp" >"$peers/stamp"
fi
echo "$PWD/$peers/bin/python"
