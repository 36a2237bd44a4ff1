// The sizes of what a block of the int8 product's kernel computes. The kernel uses them, and so does the host, which
// chooses a kernel by them (kernels/host/matmul/int8/int8_matmul_config.hpp).
#pragma once
#include "kernels/device/types.hpp"

namespace nibble::kernels {

using device::u32;

/// y [m, n] = x [m, k] * transposed(weight [n, k]). A block takes block_m() of m and block_n() of n at a time, and goes
/// through k in steps of block_k(). Each of its warps has its own part of block_n() and of block_k().
struct Int8MatmulTile {
  u32 m_tiles;  // of 8 along m, the small operand of mma.sync
  u32 n_warps;  // the warps of a block along n ...
  u32 k_warps;  // ... and along k
  u32 n_tiles;  // of 16 along n, the large operand of mma.sync, for each warp
  u32 groups;   // of 64 along k, of a warp in a step

  u32 load_bytes = 16;  // of codes that a lane loads at a time: 16, or 8 if that is what rows are aligned to

  [[nodiscard]] constexpr u32 threads() const { return 32 * n_warps * k_warps; }
  [[nodiscard]] constexpr u32 block_m() const { return 8 * m_tiles; }
  [[nodiscard]] constexpr u32 max_m() const { return block_m(); }
  [[nodiscard]] constexpr u32 block_n() const { return 16 * n_tiles * n_warps; }
  [[nodiscard]] constexpr u32 block_k() const { return 64 * groups * k_warps; }
  [[nodiscard]] constexpr u32 min_blocks() const { return m_tiles <= 2 ? 2 : 1; }  // per multiprocessor

  bool operator==(const Int8MatmulTile&) const = default;
};

}  // namespace nibble::kernels
