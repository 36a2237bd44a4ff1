#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "nibble/memory.hpp"
#include "nibble/plan.hpp"

namespace nibble {

/// What compensation takes of a conversion's memory.
struct CompensationMemory {
  std::uint64_t making_bytes = 0;  ///< of the largest factor while it is made, before any weight is encoded
  std::uint64_t factor_bytes = 0;  ///< of the largest factor
  std::uint64_t thread_bytes = 0;  ///< for each thread that encodes, beside chunk_share times a chunk of the source

  static constexpr std::uint64_t chunk_share = 2;  ///< the weights in fp32, which the source may have in 16 bits

  [[nodiscard]] std::uint64_t bytes(std::uint64_t threads, std::uint64_t chunk_bytes) const {
    return factor_bytes == 0
               ? 0
               : std::max(making_bytes, factor_bytes + threads * (thread_bytes + chunk_share * chunk_bytes));
  }
};

/// What the statistics of a calibration take of a conversion's memory.
struct StatisticsMemory {
  std::uint64_t bytes = 0;         ///< throughout the conversion
  std::uint64_t column_bytes = 0;  ///< of the widest tensor's ColumnWeights, which each tensor in progress has
  std::size_t tensors = 0;         ///< with ColumnWeights
  CompensationMemory compensation{};
};

/// Chooses the size and the number of batches such that
///
///   program + names + statistics + compensation + threads x (chunk + queue) + (tokens + behind) x encoded batch
///   + scratch <= max_memory
///
/// where scratch is twice the largest Quantizer::scratch_bytes(), or once, or the memory that is left; a file takes the
/// rest. A transposed tensor is gathered from all of its rows on disk, and larger chunks read longer stretches of each:
/// there, a chunk is 8 to 32 times as large. Throws Error(no_space), which says how much is needed, if even the
/// smallest batches do not fit.
[[nodiscard]] ConversionMemory conversion_memory(const Plan& plan, const Resources& resources,
                                                 const StatisticsMemory& statistics = {});

}  // namespace nibble
