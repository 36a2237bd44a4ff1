#!/usr/bin/env bash
# Makes llama-quantize, for this machine's processor, and the python that writes its input: build/peers/llama/bin, once.
# The source is the distribution of llama-cpp-python on PyPI, which has llama.cpp in it. Compiling takes about ten
# minutes of one core.
set -euo pipefail
cd "$(dirname "$0")/../.."

version=0.3.36
sha256=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
peer=build/peers/llama
[[ -f $peer/version && $(<"$peer/version") == "$version" ]] && exit 0  # written last

echo "building llama-quantize in $peer (once)" >&2
python3 -m venv "$peer"
pip=("$peer/bin/pip" --quiet --disable-pip-version-check)
"${pip[@]}" install gguf==0.19.0 -c python/constraints.txt >&2
# pip asks the package for its metadata, which builds nothing.
"${pip[@]}" download --no-deps --no-binary llama-cpp-python --dest "$peer" \
    -r <(echo "llama-cpp-python==$version --hash=sha256:$sha256") >&2
mkdir -p "$peer/source"
tar -xzf "$peer/llama_cpp_python-$version.tar.gz" -C "$peer/source" --strip-components=3 \
    "llama_cpp_python-$version/vendor/llama.cpp"

# llama.cpp's own choice of native flags leaves out the file that quantizes.
if ! {
  cmake -G Ninja -S "$peer/source" -B "$peer/build" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
      -DCMAKE_C_FLAGS=-march=native -DCMAKE_CXX_FLAGS=-march=native -DLLAMA_OPENSSL=OFF &&
  cmake --build "$peer/build" --target llama-quantize
} >"$peer/build.log" 2>&1; then
  echo "error: llama-quantize: the build failed: $peer/build.log" >&2
  exit 1
fi
cp "$peer/build/bin/llama-quantize" "$peer/bin/"
rm -rf "$peer"/{source,build,llama_cpp_python-*.tar.gz}
echo "$version" >"$peer/version"
