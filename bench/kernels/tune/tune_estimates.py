"""The constants of the library's plan that bench_tune does not measure, as they stand in its table."""

NOT_MEASURED = "An estimate, not measured"

# The step `library` of bench/kernels.sh measures it.
MIN_LIBRARY_M = 512

# Costs.multiprocessors_to_fill: those of an H100 and an H200.
MULTIPROCESSORS_TO_FILL = 132

OF_THE_TABLE = f"""
/// The kernels that are compiled for runs shorter than 64 (kernels/four_bit_matmul_run.hpp): few, because few weights
/// have blocks of 32 or a k that is no multiple of 64. More than 32 rows of x take turns.
///
/// {NOT_MEASURED}.
inline constexpr std::array<Choice, 6> choices_of_short_runs{{{{
    {{{{.m_tiles = 1, .n_warps = 2, .k_warps = 4, .run = 32}}, 0, 8}},
    {{{{.m_tiles = 4, .n_warps = 4, .k_warps = 2, .run = 32}}, 9, 64}},
    {{{{.m_tiles = 1, .n_warps = 2, .k_warps = 4, .run = 16}}, 0, 8}},
    {{{{.m_tiles = 4, .n_warps = 4, .k_warps = 2, .run = 16}}, 9, 64}},
    {{{{.m_tiles = 1, .n_warps = 2, .k_warps = 4, .run = 8}}, 0, 8}},
    {{{{.m_tiles = 4, .n_warps = 4, .k_warps = 2, .run = 8}}, 9, 64}},
}}}};

/// {NOT_MEASURED}.
inline constexpr Sm90Costs sm90_costs{{
    .clocks_of_a_step = 960,
    .clocks_of_a_row = 12,
    .clocks_of_an_item = 2'500,
    .clocks_of_adding = 2'000,
    .bytes_in_a_clock = 24,
}};
"""
