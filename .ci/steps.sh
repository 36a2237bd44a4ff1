# Steps of a CI script, each with its time, and at the end all of them in one table. To be sourced.
titles=() begins=() left_out=()

step() {
  titles+=("$1") begins+=("$SECONDS")
  printf '\n== %s (%d s)\n' "$1" "$SECONDS"
}

# step_within SECONDS TITLE: begins a step, unless so many seconds have passed since the start of the script. Then it
# says that the step is left out and fails, so it stands in an `if`.
step_within() {
  if [[ $SECONDS -lt $1 ]]; then
    step "$2"
  else
    left_out+=("$2")
    printf '\n== left out, as %d s have passed: %s\n' "$SECONDS" "$2"
    return 1
  fi
}

print_steps() {
  local status=$? i end
  [[ ${#titles[@]} -gt 0 ]] || return
  begins+=("$SECONDS")
  printf '\n%8s  %s\n' seconds step
  for i in "${!titles[@]}"; do printf '%8d  %s\n' $((begins[i + 1] - begins[i])) "${titles[i]}"; done
  for i in "${left_out[@]}"; do printf '%8s  %s\n' "left out" "$i"; done
  if [[ $status -eq 0 ]]; then
    printf '%8d  all passed%s\n' "$SECONDS" "${left_out[*]:+ but what was left out}"
  else
    printf '%8d  FAILED in: %s\n' "$SECONDS" "${titles[-1]}"
  fi
}
trap print_steps EXIT
