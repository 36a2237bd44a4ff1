#!/bin/sh
# keep_log.sh <object> <compiler> ...: runs the compiler and keeps what it says in <object>.log, where
# tests/kernels/machine_code/run.py looks for spills and for what ptxas calls a loss of performance. What ptxas says of
# each kernel (-Xptxas -v) is not shown.
log=$1.log
shift
"$@" >"$log" 2>&1
status=$?
grep -vE '^ptxas info|^ +[0-9]+ bytes stack frame|^$' "$log" >&2
exit $status
