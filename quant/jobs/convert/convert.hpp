#pragma once

#include "formats/commit/writer.hpp"
#include "nibble/convert.hpp"
#include "quant/stream/stored_weights.hpp"

namespace nibble {

/// The last step of a conversion alone: converts `in` as planned and commits `out`, with a nibble.json that holds
/// schema, options, and every tensor with codec, reason, sizes, findings and hashes. `plan` is that of the same
/// weights.
///
/// The input is read once, front to back, in chunks; every chunk is encoded on its own thread and written to its final
/// offset. The bytes do not depend on threads or memory. If it throws, no output has appeared. Throws Error(bad_input)
/// for non-finite values or overflow that the recipe does not allow, Error(input_changed), Error(no_space), Error(io),
/// Error(interrupted).
Report convert(const StoredWeights& in, Plan plan, Writer& out, const Resources& resources, Progress& progress);

/// The same for weights that are still to be found.
Report convert(const Reader& in, Plan plan, Writer& out, const Resources& resources, Progress& progress);

}  // namespace nibble
