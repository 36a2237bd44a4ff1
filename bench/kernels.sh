#!/usr/bin/env bash
# The kernels on a GPU: builds here what is carried to a machine that has one, and there checks, tunes and measures.
#
#   bench/kernels.sh build DIR [--bitsandbytes PACKAGE]
#       DIR gets all that `run` needs: at most 60 MB, this script too. CUDA's compiler is needed, a GPU is not.
#       PACKAGE is the folder of bitsandbytes' Python package; its Python files and its library for the newest major
#       version of CUDA go along.
#   DIR/kernels.sh run DIR PART [options]
#       PART: check, tune or ceilings, at most eight minutes each. Results are files in $OUT, or bench/results.
#       DIR/kernels_run.py --help has the options.
#
# docs/kernels-benchmark.md says what the parts do and what the files have.
set -euo pipefail

programs=(bench_kernels bench_ceilings nibble_calibrate nibble_kernel_tests_gpu)
optional=(bench_tune)
libraries=()  # of the Python package
max_bytes=60000000

usage() { sed -n '2,13s/^# \{0,1\}//p' "$0"; }

# Wrong usage.
fail() {
  echo "error: $1" >&2
  exit 2
}

# The paths of the libraries that programs load, but not of those that belong to a machine: an older libstdc++ would stop
# other people's libraries.
libraries_of() {
  ldd "$@" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
    grep -Ev '/(libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s)\.so\.'
}

# The Python files of a package.
copy_package() {
  local package=$1 to=$2 name
  find "$package" -name '*.py' -printf '%P\n' | while read -r name; do install -D "$package/$name" "$to/$name"; done
}

copy_bitsandbytes() {
  local package=$1 to=$2 name
  copy_package "$package" "$to/bitsandbytes"
  # The package takes one of the same major version where it has none for torch's CUDA.
  name=$(find "$package" -maxdepth 1 -name 'libbitsandbytes_cuda*.so' | sort | tail -n 1)
  find "$package" -maxdepth 1 -name "$(basename "${name%?.so}")?.so" | sort | head -n 1 |
    xargs -d '\n' install -t "$to/bitsandbytes"
  # transformers asks for the package's version, which only its metadata has.
  for name in "$package"-*.dist-info/METADATA; do
    if [[ -e $name ]]; then install -D "$name" "$to/$(basename "$(dirname "$name")")/METADATA"; fi
  done
}

build() {
  local dir=$1 package=$2 name targets bytes
  cd "$(dirname "${BASH_SOURCE[0]}")/.."
  cmake --preset release -DNIBBLE_BENCH=ON -DNIBBLE_CUDA=ON >/dev/null
  targets=$(cmake --build --preset release --target help)
  for name in "${optional[@]}"; do
    if grep -q "^$name:" <<<"$targets"; then programs+=("$name"); fi
  done
  if grep -q '^nibble_torch:' <<<"$targets"; then libraries+=(python/libnibble.so python/torch/libnibble_torch.so); fi
  cmake --build --preset release --target nibble "${programs[@]}" ${libraries:+nibble_c nibble_torch}

  rm -rf "$dir"/{bin,lib,python,state,scratch}
  mkdir -p "$dir"/{bin,lib,python}
  local -a built=("${programs[@]/#/build/release/kernels/}" build/release/nibble)
  install --strip "${built[@]}" "$dir/bin"
  if [[ ${#libraries[@]} -gt 0 ]]; then
    libraries=("${libraries[@]/#/build/release/}")
    install --strip "${libraries[@]}" "$dir/lib"
    copy_package python/nibble "$dir/python/nibble"
  else
    echo "without the Python package: CMake found no torch to build its operators with (NIBBLE_PYTHON_WITH_TORCH)"
  fi
  libraries_of "${built[@]}" "${libraries[@]}" | xargs -d '\n' install --strip -t "$dir/lib"
  install bench/kernels.sh "$dir"
  install bench/kernels/run/*.py bench/checkpoints.py "$dir"
  if [[ -n $package ]]; then copy_bitsandbytes "$package" "$dir/python"; fi
  git describe --always --dirty >"$dir/commit"

  bytes=$(du -sb "$dir" | cut -f 1)
  echo "$dir: $bytes bytes"
  if ((bytes > max_bytes)); then
    echo "error: that is more than $max_bytes" >&2
    return 1
  fi
}

# Says why `build` cannot take its arguments, or nothing.
fault_of_build() {
  if [[ -z ${1-} || $1 == -* ]]; then
    echo "build needs a folder: kernels.sh build DIR [--bitsandbytes PACKAGE]"
  elif [[ -e $1 && ! -d $1 ]]; then
    echo "$1 is not a folder"
  elif [[ -d $1 && ! -f $1/kernels_run.py && -n $(ls -A "$1") ]]; then
    echo "$1 has other files, and build would delete some of them: name a new folder, or one that build made"
  elif [[ $# -gt 1 && $2 != --bitsandbytes ]]; then
    echo "build has no option $2"
  elif [[ $# -eq 2 ]]; then
    echo "--bitsandbytes needs the folder of bitsandbytes' Python package"
  elif [[ $# -gt 3 ]]; then
    echo "build takes no argument $4"
  elif [[ $# -eq 3 ]] && ! compgen -G "$3/libbitsandbytes_cuda*.so" >/dev/null; then
    echo "$3 has no libbitsandbytes_cuda*.so"
  fi
}

case ${1-} in
  build)
    fault=$(fault_of_build "${@:2}")
    [[ -z $fault ]] || fail "$fault"
    package=''
    if [[ $# -gt 2 ]]; then package=$(cd "$4" && pwd); fi
    mkdir -p "$2"
    build "$(cd "$2" && pwd)" "$package"
    ;;
  run)
    [[ -n ${2-} ]] || fail "run needs a folder and a part: kernels.sh run DIR PART"
    [[ -f $2/kernels_run.py ]] || fail "$2 is not a folder that kernels.sh build made"
    dir=$(cd "$2" && pwd)
    exec python3 "$dir/kernels_run.py" "$dir" "${@:3}"
    ;;
  help | --help) usage ;;
  '')
    usage >&2
    exit 2
    ;;
  *) fail "$1 is not build or run" ;;
esac
