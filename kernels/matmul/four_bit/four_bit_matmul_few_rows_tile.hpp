// The sizes of what a block of FourBitMatmulFewRows computes. The kernel uses them, and so does the host, which chooses
// a kernel by them (kernels/host/matmul/four_bit/four_bit_matmul_config.hpp).
#pragma once
#include "kernels/device/types.hpp"

namespace nibble::kernels {

using device::u32;

/// A block takes max_m() of m and block_n() of n, and goes through k in steps of block_k(). Each of its warps has 32 of
/// n and 64 of k in a step.
struct FourBitMatmulFewRowsTile {
  u32 m_tiles;      // of 8 along m
  u32 n_warps;      // that multiply, along n ...
  u32 k_warps;      // ... and along k; 16 in all
  u32 n_tiles = 2;  // of 16 along n, for each warp

  static constexpr u32 code_stages = 4;  // of a step each, filled and emptied in turn
  [[nodiscard]] constexpr u32 threads() const { return 32 * n_warps * k_warps; }  // that multiply
  [[nodiscard]] constexpr u32 max_m() const { return 8 * m_tiles; }
  [[nodiscard]] constexpr u32 block_n() const { return 16 * n_tiles * n_warps; }
  [[nodiscard]] constexpr u32 block_k() const { return 64 * k_warps; }

  bool operator==(const FourBitMatmulFewRowsTile&) const = default;
};

}  // namespace nibble::kernels
