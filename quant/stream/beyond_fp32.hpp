#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "nibble/metrics.hpp"

/// Weights are compared as fp32. There, finite fp64 numbers beyond its range are infinite, and other fp64 numbers that
/// differ may be equal. These functions correct what describe() and compare() found in a tile for such numbers.
namespace nibble {

/// A tile of weights as fp32, and their bytes if they are stored as F64 (otherwise empty).
struct ComparedTile {
  std::span<const float> weights;
  std::span<const std::byte> fp64;
};

/// Moves finite weights from `inf` to `beyond_fp32`.
void correct_beyond_fp32(const ComparedTile& tile, WeightStats& stats);

/// A weight of the test counts as infinite only if it is stored as infinity. A finite weight of the reference is lost
/// if the test's weight is not finite, or if either is beyond fp32 and they differ: no metric could express by how
/// much. Weights that differ but are equal in fp32 add their error. `first` is the index of the tile's first weight.
void correct_beyond_fp32(const ComparedTile& reference, const ComparedTile& test, std::uint64_t first,
                         ErrorStats& stats);

}  // namespace nibble
