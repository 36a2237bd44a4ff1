#!/usr/bin/env bash
# bitsandbytes' own tests of its operators and layers, on the CPU, with nibble behind them.
#
#   tests/interop/bitsandbytes_tests.sh CHECKOUT [pytest's options]
#
# CHECKOUT is bitsandbytes' repository, as its packages have no tests; the figures in docs/bitsandbytes-drop-in.md are
# those of commit 95f9af30. The tests need the package einops, which goes to build/bitsandbytes_tests. About 15 minutes.
# NIBBLE_BITSANDBYTES=0 runs the same tests without nibble.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
checkout=${1:?the folder of bitsandbytes\' repository}
shift
if [[ ! -f $checkout/tests/test_ops.py ]]; then
  echo "error: $checkout: has no tests/test_ops.py: it is not a checkout of bitsandbytes" >&2
  exit 2
fi
python=${PYTHON:-$root/build/peers/bin/python}
packages=$root/build/bitsandbytes_tests
[[ -d $packages/einops ]] || "$python" -m pip install --quiet --no-deps --target "$packages" einops==0.8.2

cd "$checkout"
export PYTHONPATH=${PYTHONPATH:-$root/python}:$packages BNB_TEST_DEVICE=cpu CUDA_VISIBLE_DEVICES= PYTHONDONTWRITEBYTECODE=1
exec "$python" - -q -p no:cacheprovider -o addopts= -o log_cli=false -o log_file= \
  -m 'not slow and not benchmark and not deprecated' --tb=short \
  tests/test_{functional,ops,autograd,linear4bit,linear8bitlt,modules,parametrize}.py "$@" <<'PROGRAM'
import sys
import nibble.backend
import pytest

nibble.backend.enable()
print("nibble behind:", *nibble.backend.replaced() or ["nothing"])
sys.exit(pytest.main(sys.argv[1:]))
PROGRAM
