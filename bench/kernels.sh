#!/usr/bin/env bash
# The kernels on a GPU: builds here what is carried to a machine that has one, and there calibrates, tests and measures.
#
#   bench/kernels.sh build DIR            DIR gets all that `run` needs, this script too (CUDA's compiler is needed)
#   DIR/kernels.sh run DIR [--bitsandbytes LIBRARY] [--cublaslt LIBRARY] [--quick]
#                                         appends to $OUT/kernels.jsonl; the tests' output is beside it. OUT is
#                                         bench/results unless it is set. Without a GPU it says so and does nothing.
#
# 0: all was done, or there is no GPU. Else: a test or the calibration failed (what can be measured is measured all the
# same), or the benchmark did.
set -euo pipefail

build() {
  local dir=$1 program library
  cd "$(dirname "${BASH_SOURCE[0]}")/.."
  mkdir -p "$dir/lib"
  cmake --preset release -DNIBBLE_BENCH=ON -DNIBBLE_CUDA=ON >/dev/null
  cmake --build --preset release --target bench_kernels nibble_calibrate nibble_kernel_tests_gpu
  local -a programs=(build/release/kernels/{bench_kernels,nibble_calibrate,nibble_kernel_tests_gpu})
  install "${programs[@]}" bench/kernels.sh "$dir"
  # And the libraries, but not those that belong to the machine: an older libstdc++ would stop others' libraries.
  for program in "${programs[@]}"; do
    ldd "$program" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }'
  done | sort -u | while read -r library; do
    case ${library##*/} in
      libc.so.* | libm.so.* | libdl.so.* | librt.so.* | libpthread.so.* | libstdc++.so.* | libgcc_s.so.*) ;;
      *) install "$library" "$dir/lib" ;;
    esac
  done
  git describe --always --dirty >"$dir/commit"
  du -sh "$dir"
}

# Folders of CUDA's libraries that Python packages brought: cuBLASLt, and what bitsandbytes needs.
python_cuda() {
  python3 - <<'PYTHON' 2>/dev/null || true
import pathlib, sys
found = {str(p.parent) for d in sys.path if d for p in pathlib.Path(d).glob("nvidia/*/lib/libcu*.so.1[23]")}
print(":".join(sorted(found)))
PYTHON
}

run() {
  local dir=$1 out=${OUT:-bench/results} python status=0 result=0
  shift
  python=$(python_cuda)
  export LD_LIBRARY_PATH="$dir/lib${python:+:$python}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}:/usr/local/cuda/lib64"
  "$dir/bench_kernels" --find || result=$?
  [[ $result -ne 77 ]] || return 0
  [[ $result -eq 0 ]] || return "$result"

  mkdir -p "$out"
  # A kernel that hangs must not take the rest of the time that the machine is lent for.
  printf '\n== calibration (%d s)\n' "$SECONDS"
  timeout 120 "$dir/nibble_calibrate" 2>&1 | tee "$out/kernels_calibration.txt" || status=1
  printf '\n== tests (%d s)\n' "$SECONDS"
  timeout 300 "$dir/nibble_kernel_tests_gpu" --gtest_brief=1 2>&1 | tee "$out/kernels_tests.txt" || status=1
  printf '\n== benchmark (%d s)\n' "$SECONDS"
  "$dir/bench_kernels" --out "$out/kernels.jsonl" --commit "$(cat "$dir/commit")" \
    --note "$(nvidia-smi --format=csv,noheader --query-gpu=driver_version,clocks.sm,clocks.max.sm,clocks.mem,power.limit \
      2>/dev/null || true)" "$@" || status=1
  printf '\n== done (%d s)\n' "$SECONDS"
  return $status
}

case ${1-} in
  build | run)
    if [[ $# -lt 2 ]]; then
      echo "$1 needs a folder" >&2
      exit 2
    fi
    [[ $1 == run ]] || mkdir -p "$2"
    "$1" "$(cd "$2" && pwd)" "${@:3}"
    ;;
  *)
    sed -n '2,10s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac
