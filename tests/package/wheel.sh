#!/usr/bin/env bash
# The wheel. It is checked by auditwheel, installed into an environment of its own, and used.
#
#   tests/package/wheel.sh          made of what tests/run.sh has built; the list of the source distribution's files
#   tests/package/wheel.sh --sdist  made by pip from the source distribution, which compiles all of it, without torch
#                                   and CUDA
set -euo pipefail
cd "$(dirname "$0")/../.."
[[ ${1:-} =~ ^(|--sdist)$ ]] || { echo "error: unknown option $1" >&2; exit 2; }

wheel=$PWD/build/wheel
export PIP_DISABLE_PIP_VERSION_CHECK=1
step() { printf -- '-- %s (%d s)\n' "$1" "$SECONDS"; }
audit() { PATH=$tools:$PATH "$tools/auditwheel" "$@" 2>&1; }
# An environment that has the wheel $2 and its requirements.
environment() {
  rm -rf "$1"
  python3 -m venv "$1"
  "$1/bin/pip" install --quiet -c python/constraints.txt "$2"
}

# Whether the wheel $1 works in an environment that has numpy alone.
try_alone() {
  environment "$wheel/alone" "$1"
  (cd "$wheel" && alone/bin/python -I "$OLDPWD/tests/package/wheel_alone.py" "$OLDPWD/tests/golden/codecs.safetensors")
}

step "the source distribution"
tools=$(python/tools.sh)
rm -rf "$wheel/sdist"
"$tools/python" -c "import scikit_build_core.build as build; build.build_sdist('$wheel/sdist')" >/dev/null
tests/package/sdist.py "$wheel"/sdist/*.tar.gz

if [[ ${1:-} == --sdist ]]; then
  step "its wheel, without torch and CUDA"
  "$tools/pip" wheel "$wheel"/sdist/*.tar.gz --quiet --no-deps -w "$wheel/sdist" \
    -C cmake.define.NIBBLE_CUDA=OFF -C cmake.define.NIBBLE_TORCH=OFF
  audit show "$wheel"/sdist/*.whl | tr '\n' ' ' | grep -oE 'platform tag: "manylinux_[^"]*"'
  step "with numpy alone"
  try_alone "$wheel"/sdist/*.whl
  exit
fi

step "the wheel of build/release"
rm -rf "$wheel"/{dist,audited}
peers=$(python/peers.sh)
NIBBLE_PYTHON_WITH_TORCH=$peers "$tools/pip" wheel . --quiet --no-deps --no-build-isolation -w "$wheel/dist" \
  -C build-dir=build/release
audit repair --exclude libtorch_cpu.so -w "$wheel/audited" "$wheel"/dist/*.whl | grep -F "Fixed-up wheel"
if "$tools/python" -m zipfile -l "$wheel"/audited/*.whl | grep -F .libs/; then
  echo "error: the wheel lacks these libraries, which auditwheel added" >&2
  exit 1
fi
if [[ -e build/release/kernels/libnibble_cuda.so ]]; then
  "$tools/python" -m zipfile -l "$wheel"/audited/*.whl | grep -F nibble/lib/libnibble_cuda.so
else
  echo "skipped: built without a CUDA compiler, so the wheel has no libnibble_cuda"
fi

step "with numpy alone"
try_alone "$wheel"/audited/*.whl

step "with torch"
packages=$(echo "$wheel"/alone/lib/python3*/site-packages)
dirname "$("$peers" -c 'import torch; print(torch.__path__[0])')" >"$packages/peers.pth"
(cd "$wheel" && alone/bin/python -I "$OLDPWD/tests/package/wheel_alone.py" "$OLDPWD/tests/golden/codecs.safetensors" &&
  alone/bin/python -I "$OLDPWD/tests/package/wheel_torch.py")
