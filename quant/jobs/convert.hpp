#pragma once

#include "nibble/convert.hpp"
#include "quant/stream/stored_weights.hpp"

namespace nibble {

/// As convert() of a Reader. `plan` is that of the same weights.
Report convert(const StoredWeights& in, Plan plan, Writer& out, const Resources& resources, Progress& progress);

}  // namespace nibble
