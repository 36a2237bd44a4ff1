#pragma once

#include "nibble/checkpoint.hpp"
#include "nibble/plan.hpp"
#include "quant/stream/codings.hpp"

namespace nibble {

/// Throws Error(bad_input) if two parts of planned tensors have the same name: a file that holds both cannot be read,
/// and neither can two shards. Parts that quantizing adds may be called as a tensor of the input is.
void check_part_names(const Reader& in, const PlannedTensors& tensors, const Codings& codings);

}  // namespace nibble
