"""The constants of the library's plan that bench_tune does not measure, as they stand in its table."""

NOT_MEASURED = "An estimate, not measured"

# The step `library` of bench/kernels.sh measures it.
MIN_LIBRARY_M = 512

# Those of an H100 and an H200.
MULTIPROCESSORS_TO_FILL = 132
