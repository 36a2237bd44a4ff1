# Steps of a CI script, each with its time, and at the end all of them in one table. To be sourced.
titles=() begins=()

step() {
  titles+=("$1") begins+=("$SECONDS")
  printf '\n== %s (%d s)\n' "$1" "$SECONDS"
}

print_steps() {
  local status=$? i end
  [[ ${#titles[@]} -gt 0 ]] || return
  begins+=("$SECONDS")
  printf '\n%8s  %s\n' seconds step
  for i in "${!titles[@]}"; do printf '%8d  %s\n' $((begins[i + 1] - begins[i])) "${titles[i]}"; done
  printf '%8d  %s\n' "$SECONDS" "$([[ $status -eq 0 ]] && echo "all passed" || echo "FAILED in: ${titles[-1]}")"
}
trap print_steps EXIT
