#!/usr/bin/env bash
# docs/generate_reference.sh NIBBLE [--check]: writes docs/reference/ from the program's own help, or compares.
set -euo pipefail
nibble=$(realpath "$1")
cd "$(dirname "$0")/reference"

page() {  # page COMMAND...
  printf '# %s\n\nWhat `%s --help` prints. Made by docs/generate_reference.sh.\n\n```text\n' "$*" "$*"
  "$nibble" "${@:2}" --help
  printf '```\n'
}

failed=0
for command in "" convert dequantize merge inspect measure formats completion; do
  file=nibble${command:+-$command}.md
  # shellcheck disable=SC2086
  text=$(page nibble $command)
  if [[ ${2:-} == --check ]]; then
    diff -u "$file" <(printf '%s\n' "$text") || failed=1
  else
    printf '%s\n' "$text" >"$file"
  fi
done
exit "$failed"
