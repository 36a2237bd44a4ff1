#pragma once

#include <cstddef>
#include <span>

#include "nibble/matmul.hpp"
#include "quant/matmul/range.hpp"

namespace nibble::matmul {

/// What is multiplied by a weight, and where the result goes.
struct Operands {
  DType dtype;
  std::size_t m;
  std::span<const std::byte> x;     ///< [m, k], or dy [m, n]
  std::span<const std::byte> bias;  ///< [n], or empty
  std::span<std::byte> y;           ///< [m, n], or dx [m, k]
};

/// The most columns that round() takes.
inline constexpr std::size_t max_rounded_columns = 512;

/// y = sums + bias, rounded once, in these rows and columns of y, which has `all_columns`. Row r of the sums starts at
/// sums + r * stride; they are overwritten.
void round(const Operands& operands, Range rows, Range columns, std::size_t all_columns, float* sums,
           std::size_t stride);

}  // namespace nibble::matmul
