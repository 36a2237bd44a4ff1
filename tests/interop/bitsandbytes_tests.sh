#!/usr/bin/env bash
# bitsandbytes' own tests of its operators and layers, on the CPU, with nibble behind them.
#
#   tests/interop/bitsandbytes_tests.sh CHECKOUT [pytest's options]
#
# CHECKOUT is bitsandbytes' repository, as its packages have no tests; the figures in docs/bitsandbytes-drop-in.md are
# those of commit 95f9af30. The tests need the package einops, which goes to build/bitsandbytes_tests. About 15 minutes.
# NIBBLE_BITSANDBYTES=0 runs the same tests without nibble. EXACT=1 runs them with gemv_4bit in fp64, whose result is
# rounded once: a test that fails then fails for the exact product.
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
import os
import sys
import nibble.backend
import pytest
import torch


def exact_gemv_4bit(A, B, shapeB, absmax, code, blocksize):
    quant_type = "fp4" if code[1] > 0 else "nf4"
    weight = torch.ops.bitsandbytes.dequantize_4bit(B, absmax, blocksize, quant_type, shapeB, torch.float32)
    return (A.double() @ weight.double().t()).to(A.dtype)


if os.environ.get("EXACT") == "1":
    nibble.backend._OPERATORS["gemv_4bit"] = exact_gemv_4bit
nibble.backend.enable()
print("nibble behind:", *nibble.backend.replaced() or ["nothing"])
sys.exit(pytest.main(sys.argv[1:]))
PROGRAM
