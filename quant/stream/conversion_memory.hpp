#pragma once

#include <cstddef>
#include <cstdint>

#include "nibble/memory.hpp"
#include "nibble/plan.hpp"

namespace nibble {

/// What the statistics of a calibration take of a conversion's memory.
struct StatisticsMemory {
  std::uint64_t bytes = 0;         ///< throughout the conversion
  std::uint64_t column_bytes = 0;  ///< of the widest tensor's ColumnWeights, which each tensor in progress has
  std::size_t tensors = 0;         ///< with ColumnWeights
};

/// Chooses the size and the number of batches such that
///
///   program + names + statistics + threads x (chunk + queue) + (tokens + behind) x encoded batch + scratch
///   <= max_memory
///
/// where scratch is twice the largest Quantizer::scratch_bytes(), or once, or the memory that is left; a file takes the
/// rest. A transposed tensor is gathered from all of its rows on disk, and larger chunks read longer stretches of each:
/// there, a chunk is 8 to 32 times as large. Throws Error(no_space), which says how much is needed, if even the
/// smallest batches do not fit.
[[nodiscard]] ConversionMemory conversion_memory(const Plan& plan, const Resources& resources,
                                                 const StatisticsMemory& statistics = {});

}  // namespace nibble
