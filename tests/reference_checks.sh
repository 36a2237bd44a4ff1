#!/usr/bin/env bash
# tests/reference_checks.sh FOLDER: runs the checkers of a folder that holds oracle/ and hostile/ on this build. The
# project's own tests cover the same ground; these were written apart from it.
set -euo pipefail
shared=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."

python=build/peers/bin/python
nibble=build/release/nibble
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export HF_HUB_OFFLINE=1

# Without what bitsandbytes 0.50.2 does to 4-bit weights in the first forward on processors with avx512_bf16, as
# tests/interop/loading.py explains.
load_check() {
  "$python" - "$shared/oracle/load_check.py" "$@" <<'EOF'
import runpy
import sys

import bitsandbytes.nn.modules

bitsandbytes.nn.modules.has_avx512bf16 = lambda: False
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
EOF
}

# Refusing an input takes less than 20 ms of the 100 allowed, but reading the program from a cold disk took 309 once, and
# shared machines take the processor away: one start before, five times the time. The limit of memory stays.
"$nibble" --version
"$python" "$shared/hostile/make_hostile.py" --out "$work/hostile"
"$python" "$shared/hostile/check.py" "$work/hostile" --nibble "$nibble" --format safetensors,sharded,config --slow 5

"$python" "$shared/oracle/bnb_blockwise.py" | tail -n 1
"$python" "$shared/oracle/bnb_int8.py" | tail -n 1
"$python" "$shared/oracle/make_tiny_llama.py" "$work/llama" >"$work/log" 2>&1

# The bytes of bitsandbytes itself; with double quantization but for the offset, which is a mean over threads there.
"$python" "$shared/oracle/make_reference.py" "$work/llama/fp32_untied_single" "$work/reference" \
  --variants nf4,fp4,int8,nf4_dq >>"$work/log" 2>&1
for variant in nf4 fp4 int8; do
  double_quant=(); [[ $variant == int8 ]] || double_quant=(--no-double-quant)
  "$nibble" convert "$work/llama/fp32_untied_single" "$work/$variant" --to "$variant" "${double_quant[@]}" >/dev/null 2>&1
  "$python" "$shared/oracle/compare.py" "$work/$variant/model.safetensors" "$work/reference/$variant.safetensors"
done

for model in {fp32,bf16}_{tied,untied}_{single,sharded} fp16_{tied,untied}_single; do
  for to in "nf4 --no-double-quant:0" "nf4:0.1" "int8:0" "fp16:0" "fp4:0.1"; do
    rm -rf "$work/out"
    # shellcheck disable=SC2086
    "$nibble" convert "$work/llama/$model" "$work/out" --to ${to%:*} >/dev/null 2>&1
    echo "$model ${to%:*}"
    load_check "$work/out" --ref "$work/llama/$model" --tol "${to#*:}" \
      >"$work/log" 2>&1 || { tail -n 20 "$work/log"; exit 1; }
  done
done
for to in nf4 int8 fp16; do
  echo "MiniLM $to"
  load_check "build/minilm/$to" --auto AutoModel --targets query,value \
    >"$work/log" 2>&1 || { tail -n 20 "$work/log"; exit 1; }
done
