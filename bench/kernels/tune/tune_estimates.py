"""The constants of the library's plan that bench_tune does not measure, as they stand in its table."""

NOT_MEASURED = "An estimate, not measured"

# The step `library` of bench/kernels.sh measures it.
MIN_LIBRARY_M = 512

# Those of an H100 and an H200.
MULTIPROCESSORS_TO_FILL = 132

# Clusters of 1, 2, 4 and 8 blocks that such a device would run at a time if any of its multiprocessors could share one.
CLUSTERS = (132, 66, 33, 16)

# Nanoseconds, in the order of the kernels and costs of tune_sm90.py. The kernels for few rows: a step, a row of x in a
# step, 16 of n in a step, 8 rows of sums, adding the sums of a cluster.
FEW_ROWS_COSTS = (
    (150, 11, 256, 450, 2500),
    (150, 11, 70, 700, 2500),
    (150, 11, 140, 700, 2500),
    (150, 11, 70, 700, 2500),
)
# Those for many rows: a step, 64 of n in a step, 32 rows of sums, a start.
MANY_ROWS_COSTS = (
    (600, 300, 2000, 3000),
    (450, 250, 2500, 2000),
    (750, 400, 2500, 3000),
    (500, 450, 2500, 3000),
    (600, 300, 2500, 2000),
    (850, 550, 2500, 2000),
    (1000, 600, 2500, 2000),
)
