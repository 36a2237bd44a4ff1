#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "nibble/tensor.hpp"
#include "quant/errors/squares.hpp"

namespace nibble::int8 {

/// The squares of F32, BF16 or F16 weights and of what their codes are decoded to. They are those of rows that follow
/// each other, of `columns` >= squares_step weights each; the first has `left` weights to come. `absmax` has that of
/// each.
void compare_rows(DType source, std::span<const std::byte> weights, std::span<const std::int8_t> codes,
                  std::uint64_t columns, std::uint64_t left, std::span<const float> absmax, Squares& squares);

/// The errors of at most 4096 weights of any type, given the same. From the decoded weights where fp32 cannot hold the
/// sums, for F64, and for rows shorter than squares_step.
[[nodiscard]] ErrorSums error_of_rows(DType source, std::span<const std::byte> weights,
                                      std::span<const std::int8_t> codes, std::uint64_t columns, std::uint64_t left,
                                      std::span<const float> absmax);

}  // namespace nibble::int8
