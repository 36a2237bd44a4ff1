#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>

#include "quant/jobs/measure/pairing.hpp"
#include "quant/stream/codings.hpp"
#include "quant/stream/memory_model.hpp"

namespace nibble {

/// How a measurement uses its memory.
struct MeasurementMemory {
  unsigned threads = 1;
  std::size_t tokens = 1;          ///< units in flight
  std::uint64_t tensor_bytes = 0;  ///< what one tensor and its codes may take; two tensors may be in progress
  std::size_t results = 0;         ///< the largest possible number of results
};

/// `codings` are those of the candidates, and `statistics` the bytes of the calibrations that they use. Throws
/// Error(no_space) if even one unit at a time needs more than allowed.
[[nodiscard]] MeasurementMemory measurement_memory(const Pairing& pairing, std::span<const Candidate> candidates,
                                                   const std::deque<Codings>& codings, const MeasureOptions& options,
                                                   std::uint64_t statistics = 0);

}  // namespace nibble
