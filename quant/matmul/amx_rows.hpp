#pragma once

#include "quant/matmul/operands.hpp"
#include "quant/matmul/weight.hpp"

namespace nibble::matmul {

/// Whether a product is multiplied in AMX tiles: more than a few rows in bf16, where the processor has such tiles.
[[nodiscard]] bool are_amx_rows(const FourBitRows& weight, const Operands& operands);
[[nodiscard]] bool are_amx_rows(const Int8Rows& weight, const Operands& operands);

/// y = x * transposed(weight) + bias, or dx = dy * weight, in AMX tiles.
void multiply_amx(const FourBitRows& weight, bool transposed, const Operands& operands, const Executor& executor);
void multiply_amx(const Int8Rows& weight, bool transposed, const Operands& operands, const Executor& executor);

}  // namespace nibble::matmul
