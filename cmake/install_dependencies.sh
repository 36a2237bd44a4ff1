#!/usr/bin/env bash
# Installs what nibble is built with, from Debian's or Ubuntu's packages. --tools adds what only its developers need.
set -euo pipefail

packages=(g++ cmake ninja-build pkg-config python3 python3-venv
          libcli11-dev libfmt-dev libhwy-dev libgmock-dev libgtest-dev libre2-dev libtbb-dev libxtensor-dev
          libxxhash-dev nlohmann-json3-dev)
tools=(clang clang-format clang-tidy libbenchmark-dev)
[[ ${1:-} == --tools ]] && packages+=("${tools[@]}")

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done
[[ ${#missing[@]} -eq 0 ]] && exit 0

as_root=()
[[ $(id -u) -eq 0 ]] || as_root=(sudo)
"${as_root[@]}" apt-get update -qq
DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
