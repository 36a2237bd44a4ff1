#pragma once

#include "nibble/checkpoint.hpp"
#include "nibble/plan.hpp"
#include "quant/stream/codings.hpp"

namespace nibble {

/// Throws Error(bad_input) if two parts of planned tensors have the same name: a file that holds both cannot be read,
/// and neither can two shards. Quantizing adds parts, whose names may be those of tensors in the input.
void check_part_names(const Reader& in, const PlannedTensors& tensors, const Codings& codings);

}  // namespace nibble
