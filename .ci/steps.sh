# Steps of a CI script, each with its time, and at the end all of them in one table. To be sourced.
titles=() begins=() left_out=() beside=() finished=()

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

# step_beside TITLE COMMAND...: begins a step that runs beside those that follow, for one that keeps one processor busy.
# Its output is shown by join_steps, which fails if the step did.
step_beside() {
  local title=$1 log
  shift
  log=$(mktemp)
  { "$@" && echo "$SECONDS" >"$log.end"; } >"$log" 2>&1 </dev/null &
  beside+=("$! $log $SECONDS $title")
}

join_steps() {
  local entry pid log begin title status=0
  for entry in "${beside[@]}"; do
    read -r pid log begin title <<<"$entry"
    wait "$pid" || status=$?
    printf '\n== %s (beside the steps above)\n' "$title"
    cat "$log"
    if [[ $status -ne 0 ]]; then
      titles+=("$title") begins+=("$begin")
      exit "$status"
    fi
    finished+=("$(($(<"$log.end") - begin)) $title")
    rm "$log" "$log.end"
  done
  beside=()
}

print_steps() {
  local status=$? i
  [[ ${#titles[@]} -gt 0 ]] || return
  [[ ${#beside[@]} -eq 0 ]] || { kill "${beside[@]%% *}"; wait; } 2>/dev/null || true
  begins+=("$SECONDS")
  printf '\n%8s  %s\n' seconds step
  for i in "${!titles[@]}"; do printf '%8d  %s\n' $((begins[i + 1] - begins[i])) "${titles[i]}"; done
  for i in "${finished[@]}"; do printf '%8d  %s (beside others)\n' "${i%% *}" "${i#* }"; done
  for i in "${left_out[@]}"; do printf '%8s  %s\n' "left out" "$i"; done
  if [[ $status -eq 0 ]]; then
    printf '%8d  all passed%s\n' "$SECONDS" "${left_out[*]:+ but what was left out}"
  else
    printf '%8d  FAILED in: %s\n' "$SECONDS" "${titles[-1]}"
  fi
}
trap print_steps EXIT
