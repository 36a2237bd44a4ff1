#pragma once

#include "nibble/plan.hpp"
#include "quant/stream/stored_weights.hpp"

namespace nibble {

/// As make_plan() of a Reader. What `in` found among the parts is decoded to be converted.
[[nodiscard]] Plan make_plan(const StoredWeights& in, const Recipe& recipe);

}  // namespace nibble
