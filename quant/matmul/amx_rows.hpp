#pragma once

#include "quant/matmul/operands.hpp"
#include "quant/matmul/weight.hpp"

namespace nibble::matmul {

/// Whether a product is multiplied in AMX tiles where the processor has them: y = x * transposed(weight) + bias, or
/// dx = dy * weight.
[[nodiscard]] bool are_amx_rows(const FourBitRows& weight, bool transposed, const Operands& operands);
[[nodiscard]] bool are_amx_rows(const Int8Rows& weight, bool transposed, const Operands& operands);

/// The product in AMX tiles. False if it has to be computed in another way, because a number of it is not finite and
/// might be another infinity or NaN than the formula has, or because numbers are too small. Some of it may already have
/// been written then.
[[nodiscard]] bool multiply_amx(const FourBitRows& weight, bool transposed, const Operands& operands,
                                const Executor& executor);
[[nodiscard]] bool multiply_amx(const Int8Rows& weight, bool transposed, const Operands& operands,
                                const Executor& executor);

}  // namespace nibble::matmul
