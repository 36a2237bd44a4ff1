#pragma once

#include "quant/matmul/operands.hpp"
#include "quant/matmul/weight.hpp"

namespace nibble::matmul {

/// y = x * transposed(weight) + bias or, not transposed, dx = dy * weight, for any number of rows.
void multiply_tiles(const Weight& weight, bool transposed, const Operands& operands, const Executor& executor);

}  // namespace nibble::matmul
