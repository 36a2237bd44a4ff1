// Which kernel multiplies by a 4-bit weight, and in how many splits: a table (four_bit_matmul_tuned.hpp) and an
// estimate. Shapes alone decide, so that every device adds in the same order.
#pragma once
#include <span>

#include "kernels/host/four_bit_matmul_tuned.hpp"
#include "kernels/host/four_bit_matmul_tuning.hpp"

namespace nibble::kernels::four_bit_matmul {

/// The most that a kernel takes at a time; beyond, it takes so many rows of x after the other.
inline constexpr u64 max_m = 64;

struct LaunchConfig {
  Tile tile;
  u32 splits;  // blocks that divide k between them, at most 16
  u64 cost;    // the bytes of weights that could be read meanwhile, by an estimate
};

/// For any n and k, and m rows of x for each weight. Without `may_split`, splits is 1.
LaunchConfig config_for(u64 m, u64 n, u64 k, bool may_split);

/// Tiles of n for each max_m() of m: the groups of blocks that add splits.
u64 groups_of(const Tile& tile, u64 m, u64 n);

/// A product splits k only up to so many groups. If several weights divide n, they may have up to four times as many:
/// NIBBLE_COUNTERS.
inline constexpr u64 max_groups = 1024;

/// The first of the rows that fits the device: one of its capability and number of multiprocessors, or one that is for
/// any number and for all capabilities from its own on. The last row fits all devices.
const DeviceTuning& tuning_of(u32 capability, u32 multiprocessors, std::span<const DeviceTuning> rows = devices);

}  // namespace nibble::kernels::four_bit_matmul
