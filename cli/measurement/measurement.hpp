#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "nibble/measure.hpp"

namespace nibble::cli {

/// Receives a text in pieces: for a large model, one string would take as much memory as the measurement.
using Sink = std::function<void(std::string_view)>;

/// One JSON object with everything (docs/measure.md lists its fields), without a newline at the end.
void write_json(const Measurement& measurement, const Sink& out);

/// A header and a line for every tensor of every candidate.
void write_csv(const Measurement& measurement, const Sink& out);

/// For people, in lines of 80 columns unless a name is longer: the verdict on every candidate, its totals, then side by
/// side the `worst` tensors that have an error (0: all tensors), kinds and layers.
[[nodiscard]] std::string to_table(const Measurement& measurement, std::size_t worst, bool colours);

}  // namespace nibble::cli
