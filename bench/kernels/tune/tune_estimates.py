"""The constants of the library's plan that bench_tune does not measure, as they stand in its table."""

NOT_MEASURED = "An estimate, not measured"

# The step `library` of bench/kernels.sh measures it.
MIN_LIBRARY_M = 512

# Those of an H100 and an H200.
MULTIPROCESSORS_TO_FILL = 132

SM90_COSTS = f"""
/// {NOT_MEASURED}.
inline constexpr Sm90Costs sm90_costs{{
    .clocks_of_a_step = 960,
    .clocks_of_a_row = 12,
    .clocks_of_an_item = 2'500,
    .clocks_of_adding = 2'000,
    .bytes_in_a_clock = 24,
}};
"""
