#!/usr/bin/env bash
# The benchmarks of docs/performance.md by one command: builds, measures, writes bench/results/*.jsonl, fills in the
# page, and prints targets beside what was measured. About an hour, 28 GB of disk, 16 GB of memory, on a machine that
# does nothing else; before that, once, some minutes to build llama-quantize.
#
#   bench/run.sh                what of the peers is installed takes part (python/peers.sh installs them)
#   bench/run.sh in_memory      one part: in_memory, peers, convert, measure, scaling or profile_stages
#   bench/{calibration,compensation,quality,loading,matmul_cpu,quantize_cpu,search}.py
#                               not part of this: each has its command in its head, and its figures on another page
#   bench/kernels.sh            the CUDA kernels: not part of this, as it takes a machine with a GPU
#   PEERS=PYTHON bench/run.sh   with an interpreter that has the peers already
set -euo pipefail
cd "$(dirname "$0")/.."

parts=("$@")
[[ $# -gt 0 ]] || parts=(in_memory peers convert measure scaling profile_stages)
peers=${PEERS:-build/peers/bin/python}

cmake/install_dependencies.sh --tools
cmake --preset release -DNIBBLE_BENCH=ON >/dev/null
cmake --build --preset release --target nibble bench_codecs bench_stages

for part in "${parts[@]}"; do
  printf '\n== %s (%d s)\n' "$part" "$SECONDS"
  options=()
  case $part in
    peers)
      if [[ ! -x $peers ]]; then
        echo "skipped: the peers are not installed (python/peers.sh)"
        continue
      fi
      options=(--python "$peers")
      ;;
    convert)
      bench/peers/llama.sh || echo "llama-quantize is not there: it is left out"
      bench/convert.py --only flat,start --keep --out bench/results/sizes.jsonl
      options=(--python "$peers" --only main,llama --keep)
      ;;
    measure) options=(--python "$peers" --keep) ;;
    scaling) options=(--keep) ;;
    profile_stages)
      if ! command -v perf >/dev/null; then
        echo "skipped: there is no perf"
        continue
      fi
      ;;
  esac
  "bench/$part.py" "${options[@]}"
  if [[ $part == in_memory && $(build/release/bench/bench_stages simd) == AVX3* ]]; then
    bench/in_memory.py --cpu-target AVX2 --filter '^(encode|decode)/nf4|nested' --out bench/results/codecs_avx2.jsonl
  fi
done
rm -rf build/bench

printf '\n== targets (%d s)\n' "$SECONDS"
bench/table.py --write docs/performance.md
bench/table.py
