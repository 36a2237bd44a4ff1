#pragma once

#include "nibble/plan.hpp"
#include "quant/stream/stored_weights.hpp"

namespace nibble {

/// As make_plan() of a Reader. Tensors that `in` recognizes as quantized are decoded first.
[[nodiscard]] Plan make_plan(const StoredWeights& in, const Recipe& recipe);

}  // namespace nibble
