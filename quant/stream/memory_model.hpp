#pragma once

#include <cstdint>

#include "core/memory_limit.hpp"  // program_bytes

/// What memory plans count with, whatever is done. Measured as peak RSS on x86-64, and a third more than that for
/// machines with other libraries.
namespace nibble {

inline constexpr std::uint64_t bytes_per_scanned_row = 8;  ///< of tensors that are read twice (Chunking::scan)

/// Encoder::finish() takes absmax in pieces, and makes codes of them.
inline constexpr std::uint64_t finish_piece_bytes = 1 << 20;
[[nodiscard]] constexpr std::uint64_t finish_bytes(std::uint64_t absmax_bytes) {
  return (absmax_bytes < finish_piece_bytes ? absmax_bytes : finish_piece_bytes) * 5 / 4;
}

/// Parts of a tensor after its first are read whole and copied into its decoder, while that of the tensor before it may
/// still be in use.
inline constexpr std::uint64_t decoder_copies = 3;

}  // namespace nibble
