// The kernels that multiply by 4-bit and int8 weights, what the plans take them to cost, and how devices run them.
//
// bench/kernels/tune/tune_table.py writes this file from the results of bench_tune (docs/kernels-benchmark.md).
#pragma once
#include <array>

#include "kernels/host/matmul/matmul_tuning.hpp"

namespace nibble::kernels {

/// By blocks: a constant, so that every device adds in the same order.
///
/// An estimate, not measured: those of an H100 and an H200.
inline constexpr u64 multiprocessors_to_fill = 132;

namespace four_bit_matmul {

/// The kernels that are compiled. Of those for an m, the estimate takes the cheapest, and of equally cheap ones the
/// first. A larger block_n() reads x less often, a smaller one divides n more evenly between multiprocessors.
///
/// bench/results/tune_H100.jsonl, NVIDIA H100 80GB HBM3, 2026-11-26.
inline constexpr std::array<Choice, 8> choices{{
    {{.m_tiles = 1, .n_warps = 2, .k_warps = 4}, 0, 8},
    {{.m_tiles = 1, .n_warps = 1, .k_warps = 8}, 0, 8},
    {{.m_tiles = 1, .n_warps = 1, .k_warps = 8, .n_tiles = 1, .loads_first = false}, 0, 4},
    {{.m_tiles = 2, .n_warps = 2, .k_warps = 4}, 9, 16},
    {{.m_tiles = 2, .n_warps = 4, .k_warps = 2}, 9, 16},
    {{.m_tiles = 4, .n_warps = 4, .k_warps = 2}, 17, 32},
    {{.m_tiles = 8, .n_warps = 4, .k_warps = 2}, 33, 64},
    {{.m_tiles = 8, .n_warps = 8, .k_warps = 1}, 33, 64},
}};

/// The kernels that are compiled for runs shorter than 64 (kernels/matmul/four_bit/four_bit_matmul_run.hpp): few,
/// because few weights have blocks of 32 or a k that is no multiple of 64. More than 32 rows of x take turns.
///
/// An estimate, not measured.
inline constexpr std::array<Choice, 6> choices_of_short_runs{{
    {{.m_tiles = 1, .n_warps = 2, .k_warps = 4, .run = 32}, 0, 8},
    {{.m_tiles = 4, .n_warps = 4, .k_warps = 2, .run = 32}, 9, 64},
    {{.m_tiles = 1, .n_warps = 2, .k_warps = 4, .run = 16}, 0, 8},
    {{.m_tiles = 4, .n_warps = 4, .k_warps = 2, .run = 16}, 9, 64},
    {{.m_tiles = 1, .n_warps = 2, .k_warps = 4, .run = 8}, 0, 8},
    {{.m_tiles = 4, .n_warps = 4, .k_warps = 2, .run = 8}, 9, 64},
}};

/// From so many rows of x on, the weight is dequantized and a library multiplies (docs/four-bit-matmul.md).
///
/// An estimate, not measured.
inline constexpr u64 min_library_m = 512;

inline constexpr MatmulCosts costs{
    // bench/results/tune_H100.jsonl, NVIDIA H100 80GB HBM3, 2026-11-26.
    .bytes_of_a_start = 0,
    .bytes_of_an_end = 47'000,
    .bytes_of_adding = 8'900'000,
};

/// What a block of one tile of m is taken to keep of x in shared memory.
///
/// bench/results/tune_H100.jsonl, NVIDIA H100 80GB HBM3, 2026-11-26.
inline constexpr u64 bytes_of_kept_x = 0;

/// From so many rows of x on, devices of compute capability 9.0 use FourBitMatmulSm90.
///
/// bench/results/tune_H200.jsonl, NVIDIA H200, 2026-11-28.
inline constexpr u64 min_m_of_sm90 = 17;

/// How many clusters of 1, 2, 4 and 8 blocks an H100 or an H200 runs at a time: of the numbers that fit the results,
/// the one in the middle. Clusters of 4 and 8 leave some of the 132 multiprocessors idle; the reason is not known.
///
/// bench/results/tune_H200.jsonl, NVIDIA H200, 2026-11-28; bench/results/tune_few_rows_H100.jsonl, NVIDIA H100 80GB
/// HBM3, 2026-11-26; bench/results/tune_few_rows_H200.jsonl, NVIDIA H200, 2026-11-28.
inline constexpr std::array<u64, 4> clusters_to_fill{132, 66, 30, 13};

/// The kernels of FourBitMatmulFewRows that are compiled. Of those for an m the estimate takes the cheapest, and of
/// equally cheap ones the first.
///
/// bench/results/tune_few_rows_H100.jsonl, NVIDIA H100 80GB HBM3, 2026-11-26; bench/results/tune_few_rows_H200.jsonl,
/// NVIDIA H200, 2026-11-28.
inline constexpr std::array<FewRowsChoice, 4> few_rows_choices{{
    {{.m_tiles = 1, .n_warps = 1, .k_warps = 16}, 0, 8, 32, 21, 103, 665, 934},
    {{.m_tiles = 1, .n_warps = 4, .k_warps = 4}, 5, 8, 167, 9, 21, 840, 856},
    {{.m_tiles = 2, .n_warps = 2, .k_warps = 8}, 9, 16, 382, 0, 32, 548, 1'348},
    {{.m_tiles = 2, .n_warps = 4, .k_warps = 4}, 9, 16, 188, 2, 32, 753, 1'034},
}};

/// The kernels of FourBitMatmulSm90 that are compiled. For any m, the estimate takes the cheapest.
///
/// bench/results/tune_H200.jsonl, NVIDIA H200, 2026-11-28.
inline constexpr std::array<Sm90Choice, 7> sm90_choices{{
    {{.rows = 32, .n_warpgroups = 4, .k_warpgroups = 1}, 621, 304, 2'076, 3'228},
    {{.rows = 32, .n_warpgroups = 2, .k_warpgroups = 2}, 447, 248, 2'434, 2'169},
    {{.rows = 64, .n_warpgroups = 4, .k_warpgroups = 1}, 737, 409, 2'251, 3'141},
    {{.rows = 64, .n_warpgroups = 3, .k_warpgroups = 1}, 511, 447, 2'240, 3'018},
    {{.rows = 64, .n_warpgroups = 2, .k_warpgroups = 2}, 554, 332, 2'755, 2'042},
    {{.rows = 96, .n_warpgroups = 3, .k_warpgroups = 1}, 822, 545, 2'400, 2'324},
    {{.rows = 128, .n_warpgroups = 2, .k_warpgroups = 1}, 910, 627, 2'205, 2'256},
}};

/// The first row that a device fits: its capability, its multiprocessors, max_kept_x_bytes, has_resident_grid.
inline constexpr std::array<DeviceTuning, 3> devices{{
    // bench/results/tune_H100.jsonl, NVIDIA H100 80GB HBM3, 2026-11-26.
    {90, 132, 0, true},
    // An estimate, not measured.
    {90, 0, 101'376, true},
    // An estimate, not measured.
    {0, 0, 0, true},
}};

}  // namespace four_bit_matmul

namespace int8_matmul {

/// As for 4-bit weights.
///
/// An estimate, not measured.
inline constexpr std::array<Choice, 5> choices{{
    {{.m_tiles = 1, .n_warps = 2, .k_warps = 4, .n_tiles = 2, .groups = 2}, 0, 8},
    {{.m_tiles = 1, .n_warps = 1, .k_warps = 8, .n_tiles = 1, .groups = 2}, 0, 8},
    {{.m_tiles = 2, .n_warps = 2, .k_warps = 4, .n_tiles = 2, .groups = 2}, 9, 16},
    {{.m_tiles = 4, .n_warps = 4, .k_warps = 2, .n_tiles = 2, .groups = 2}, 17, 32},
    {{.m_tiles = 8, .n_warps = 4, .k_warps = 2, .n_tiles = 2, .groups = 2}, 33, 64},
}};

/// From so many rows of x on, the weight is dequantized and a library multiplies (docs/int8-matmul.md).
///
/// An estimate, not measured.
inline constexpr u64 min_library_m = 512;

inline constexpr MatmulCosts costs{
    // An estimate, not measured: instructions of 256 threads, and 0.5 us.
    .bytes_of_a_start = 12'000,
    .bytes_of_an_end = 6'000,
    .bytes_of_adding = 2'000'000,
};

}  // namespace int8_matmul
}  // namespace nibble::kernels
