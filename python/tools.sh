#!/usr/bin/env bash
# Makes an environment in build/wheel/tools, once, from pinned versions, with what makes the wheel and checks the
# package, and prints the folder of its programs.
set -euo pipefail
cd "$(dirname "$0")/.."

tools=$PWD/build/wheel/tools
stamp=$(cat python/wheel.txt python/constraints.txt | sha256sum)
if [[ ! -f $tools/complete || $(<"$tools/complete") != "$stamp" ]]; then
  python3 -m venv "$tools"
  numpy=$(grep ^numpy== python/constraints.txt)
  "$tools/bin/pip" install --quiet --disable-pip-version-check -r python/wheel.txt "$numpy" >&2
  echo "$stamp" >"$tools/complete"
fi
echo "$tools/bin"
