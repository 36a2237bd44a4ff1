#pragma once

#include "quant/matmul/operands.hpp"
#include "quant/matmul/weight.hpp"

namespace nibble::matmul {

/// Whether multiply_rows_dx() can multiply, and is faster than multiply_tiles().
[[nodiscard]] bool are_few_rows_dx(const FourBitRows& weight, const Operands& operands);
[[nodiscard]] bool are_few_rows_dx(const Int8Rows& weight, const Operands& operands);

/// dx = dy * weight. The weight is read once.
void multiply_rows_dx(const FourBitRows& weight, const Operands& operands, const Executor& executor);
void multiply_rows_dx(const Int8Rows& weight, const Operands& operands, const Executor& executor);

}  // namespace nibble::matmul
