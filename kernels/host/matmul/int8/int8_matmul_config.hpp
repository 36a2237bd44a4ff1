// Which kernel multiplies by an int8 weight, and in how many splits: a table (matmul_tuned.hpp) and an estimate. Shapes
// alone decide, so that every device adds in the same order.
#pragma once
#include "kernels/host/matmul/matmul_plan.hpp"
#include "kernels/host/matmul/matmul_tuned.hpp"

namespace nibble::kernels::int8_matmul {

/// The most that a kernel takes at a time; beyond, it takes so many rows of x after the other.
inline constexpr u64 max_m = 64;

struct LaunchConfig {
  Tile tile;
  u32 splits;  // blocks that divide k between them, at most 16
  u64 cost;    // the bytes of weights that could be read meanwhile, by an estimate
};

/// For any n and k.
LaunchConfig config_for(u64 m, u64 n, u64 k);

}  // namespace nibble::kernels::int8_matmul
