#!/usr/bin/env bash
# Installs what nibble is built with, from Debian's or Ubuntu's packages. --tools adds what only its developers need,
# --aarch64 what cross-compiles the codecs for 64-bit ARM, --browser what tests/report/run.py opens pages in (both on
# Debian).
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(g++ cmake ninja-build pkg-config python3 python3-venv
          libcli11-dev libfmt-dev libhwy-dev libgmock-dev libgtest-dev libre2-dev libtbb-dev libxtensor-dev
          libxxhash-dev libjs-chart.js nlohmann-json3-dev)
sysroot=
for option in "$@"; do
  case $option in
    --tools) packages+=(clang clang-format clang-tidy libbenchmark-dev) ;;
    --browser) packages+=(chromium-headless-shell fonts-dejavu-core) ;;
    --aarch64) packages+=(g++-aarch64-linux-gnu qemu-user-static); sysroot=build/sysroot-aarch64 ;;
    *) echo "error: unknown option $option" >&2; exit 2 ;;
  esac
done

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done
if [[ ${#missing[@]} -gt 0 ]]; then
  as_root=()
  [[ $(id -u) -eq 0 ]] || as_root=(sudo)
  echo "installing ${missing[*]}" >&2
  "${as_root[@]}" apt-get update -qq
  # One line for each package. Those of dpkg itself, and its warnings that there is no terminal, say nothing more.
  DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -q --no-install-recommends "${missing[@]}" |
    sed -u -n -E '/^(Get:|Fetched|Setting up)/p' >&2
fi

# The libraries of another architecture are unpacked, not installed: installing them beside ours would first upgrade
# every library that both have. Package lists of their own leave those of the system as they are.
[[ -n $sysroot && ! -e $sysroot/complete ]] || exit 0
rm -rf "$sysroot"
mkdir -p "$sysroot"/{debs/partial,apt/lists/partial,apt/cache/archives/partial}
root=$PWD/$sysroot
: >"$root/apt/status"
apt=(apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User=
     -o Dir::State="$root/apt" -o Dir::State::status="$root/apt/status" -o Dir::Cache="$root/apt/cache")
"${apt[@]}" update
(cd "$root/debs" && "${apt[@]}" download libfmt-dev libfmt9 libgmock-dev libgtest-dev libhwy-dev libhwy1 libtbb-dev libtbb12 \
  libtbbbind-2-5 libtbbmalloc2 libxtensor-dev xtl-dev libxxhash-dev libxxhash0 nlohmann-json3-dev >/dev/null)
for package in "$root"/debs/*.deb; do dpkg-deb -x "$package" "$root"; done
rm -rf "$root"/{apt,debs}
: >"$root/complete"
