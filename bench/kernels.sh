#!/usr/bin/env bash
# The kernels on a GPU: builds here what is carried to a machine that has one, and there checks, tunes and measures.
#
#   bench/kernels.sh build DIR [--bitsandbytes PACKAGE]
#       DIR gets all that `run` needs: at most 60 MB, this script too. CUDA's compiler is needed, a GPU is not.
#       PACKAGE is the folder of bitsandbytes' Python package; its Python files and its newest library go along.
#   DIR/kernels.sh run DIR PART [options]
#       PART: check, tune or ceilings, at most eight minutes each. Results are files in $OUT, or bench/results.
#       DIR/kernels_run.py --help has the options.
#
# docs/kernels-benchmark.md says what the parts do and what the files have.
set -euo pipefail

programs=(bench_kernels bench_ceilings nibble_calibrate nibble_kernel_tests_gpu)
optional=(bench_tune)
max_bytes=60000000

# The paths of the libraries that programs load, but not of those that belong to a machine: an older libstdc++ would stop
# other people's libraries.
libraries_of() {
  ldd "$@" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
    grep -Ev '/(libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s)\.so\.'
}

copy_bitsandbytes() {
  local package=$1 to=$2 name
  find "$package" -name '*.py' -printf '%P\n' | while read -r name; do install -D "$package/$name" "$to/$name"; done
  install "$(find "$package" -maxdepth 1 -name 'libbitsandbytes_cuda*.so' | sort | tail -n 1)" "$to"
}

build() {
  local dir=$1 package='' name targets bytes
  if [[ ${2-} == --bitsandbytes ]]; then package=$(cd "$3" && pwd); fi
  cd "$(dirname "${BASH_SOURCE[0]}")/.."
  cmake --preset release -DNIBBLE_BENCH=ON -DNIBBLE_CUDA=ON >/dev/null
  targets=$(cmake --build --preset release --target help)
  for name in "${optional[@]}"; do
    if grep -q "^$name:" <<<"$targets"; then programs+=("$name"); fi
  done
  cmake --build --preset release --target nibble "${programs[@]}"

  rm -rf "$dir"/{bin,lib,python,state,scratch}
  mkdir -p "$dir"/{bin,lib,python}
  local -a built=("${programs[@]/#/build/release/kernels/}" build/release/nibble)
  install --strip "${built[@]}" "$dir/bin"
  libraries_of "${built[@]}" | xargs -d '\n' install -t "$dir/lib"
  install bench/kernels.sh "$dir"
  install bench/kernels/run/*.py bench/checkpoints.py "$dir"
  if [[ -n $package ]]; then copy_bitsandbytes "$package" "$dir/python/bitsandbytes"; fi
  git describe --always --dirty >"$dir/commit"

  bytes=$(du -sb "$dir" | cut -f 1)
  echo "$dir: $bytes bytes"
  if ((bytes > max_bytes)); then
    echo "error: that is more than $max_bytes" >&2
    return 1
  fi
}

case ${1-} in
  build | run)
    if [[ $# -lt 2 ]]; then
      echo "$1 needs a folder" >&2
      exit 2
    fi
    [[ $1 == run ]] || mkdir -p "$2"
    dir=$(cd "$2" && pwd)
    if [[ $1 == run ]]; then exec python3 "$dir/kernels_run.py" "$dir" "${@:3}"; fi
    build "$dir" "${@:3}"
    ;;
  *)
    sed -n '2,12s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac
