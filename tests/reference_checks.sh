#!/usr/bin/env bash
# tests/reference_checks.sh FOLDER [--full]: runs the checkers of a folder that holds oracle/ and hostile/ on this
# build, on some of the models or on all of them. The project's own tests cover the same ground; these were written
# apart from it.
set -euo pipefail
shared=$(cd "$1" && pwd)
models=(fp32_tied_sharded bf16_untied_single fp16_tied_single)
[[ ${2:-} != --full ]] || models=({fp32,bf16}_{tied,untied}_{single,sharded} fp16_{tied,untied}_single)
cd "$(dirname "$0")/.."

python=build/peers/bin/python
nibble=build/release/nibble
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export HF_HUB_OFFLINE=1

# load_check.py once for each line of arguments on stdin, each in a process forked after the slow imports. Without what
# bitsandbytes 0.50.2 does to 4-bit weights in the first forward on processors with avx512_bf16, as
# tests/interop/loading.py explains.
load_checks() {
  "$python" - "$shared/oracle/load_check.py" 3<&0 <<'EOF'
import os
import runpy
import shlex
import sys
import tempfile

import bitsandbytes.nn.modules
import peft
import transformers

bitsandbytes.nn.modules.has_avx512bf16 = lambda: False
slow_imports = [peft.LoraModel, transformers.BertModel, transformers.LlamaForCausalLM]
program = sys.argv[1]
for line in open(3).readlines():
    with tempfile.TemporaryFile() as log:
        if not (child := os.fork()):
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            sys.argv = [program, *shlex.split(line)]
            runpy.run_path(program, run_name="__main__")
            sys.exit()
        if os.waitpid(child, 0)[1]:
            log.seek(0)
            sys.exit(line + log.read().decode(errors="replace")[-2000:])
    print("loaded:", line.rstrip(), flush=True)
EOF
}

# Refusing an input takes less than 20 ms of the 100 allowed, but reading the program from a cold disk took 309 once,
# and shared machines take the processor away. So the program is started before, and what was late and nothing else is
# tried once more, within the same limits.
check_hostile() {
  "$python" "$shared/hostile/check.py" "$work/hostile" --nibble "$nibble" --format safetensors,sharded,config "$@"
}
"$nibble" --version
"$python" "$shared/hostile/make_hostile.py" --out "$work/hostile"
if check_hostile >"$work/log"; then
  cat "$work/log"
else
  cat "$work/log"
  mapfile -t late < <(sed -nE 's/^reject ([^ ]+) \(.*\): [0-9]+ ms$/\1/p' "$work/log")
  ((${#late[@]} > 0 && ${#late[@]} == $(grep -cE '^(reject|accept) ' "$work/log"))) || exit 1
  for id in "${late[@]}"; do check_hostile --only "$id"; done
fi

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

for model in "${models[@]}"; do
  for to in "nf4 --no-double-quant:0" "nf4:0.1" "int8:0" "fp16:0" "fp4:0.1"; do
    out=$work/$model-${to//[: ]/-}
    # shellcheck disable=SC2086
    "$nibble" convert "$work/llama/$model" "$out" --to ${to%:*} >/dev/null 2>"$work/log" ||
      { echo "$model, $to: $(<"$work/log")" >&2; exit 1; }
    printf '%q --ref %q --tol %s\n' "$out" "$work/llama/$model" "${to#*:}"
  done
done >"$work/checks"
for to in nf4 int8 fp16; do
  echo "build/minilm/$to --auto AutoModel --targets query,value"
done >>"$work/checks"
load_checks <"$work/checks"
