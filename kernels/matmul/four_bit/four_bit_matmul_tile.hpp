// The sizes of what a block of the product's kernel computes, and how its loop waits. The kernel uses them, and so does
// the host, which chooses a kernel by them (kernels/host/matmul/four_bit/four_bit_matmul_config.hpp).
#pragma once
#include "kernels/device/types.hpp"

namespace nibble::kernels {

using device::u32;

/// Who waits for whom before a step's x is read: all warps of a block, or only those that read the same part of k.
enum class XBarrier : u32 { block, group };

/// y [m, n] = x [m, k] * transposed(weight [n, k]). A block takes block_m() of m and block_n() of n at a time, and goes
/// through k in steps of block_k(). Each of its warps has its own part of block_n() and of block_k().
///
/// `barrier`, `loads_first` and `prefetched_steps` change when a block waits and loads, never the result.
/// bench/kernels/tune/tune.cpp measures them. `loads_first` changes nothing in a kernel that copies_codes().
struct FourBitMatmulTile {
  u32 m_tiles;      // of 8 along m, the small operand of mma.sync
  u32 n_warps;      // the warps of a block along n ...
  u32 k_warps;      // ... and along k
  u32 n_tiles = 2;  // of 16 along n, the large operand of mma.sync, for each warp; 1 or 2
  XBarrier barrier = XBarrier::group;
  bool loads_first = true;   // the next step's codes are loaded before the barrier, not after it
  u32 prefetched_steps = 0;  // how far ahead codes are requested into the L2 cache
  u32 run = 64;              // contiguous weights of a row that share an absmax: 64, 32, 16 or 8

  [[nodiscard]] constexpr u32 threads() const { return 32 * n_warps * k_warps; }
  [[nodiscard]] constexpr u32 block_m() const { return 8 * m_tiles; }
  [[nodiscard]] constexpr u32 max_m() const { return n_tiles == 1 ? 4 : block_m(); }  // that shared memory has room for
  [[nodiscard]] constexpr u32 block_n() const { return 16 * n_tiles * n_warps; }
  [[nodiscard]] constexpr u32 groups() const { return 4 / n_tiles; }  // of 64 along k, of a warp in a step
  [[nodiscard]] constexpr u32 block_k() const { return 64 * groups() * k_warps; }
  // Per multiprocessor. With runs of 8, absmax takes too many registers for two.
  [[nodiscard]] constexpr u32 min_blocks() const { return m_tiles <= 2 && run > 8 ? 2 : 1; }

  /// Whether codes come to registers through shared memory, where they are copied two steps ahead. With runs of 8 and
  /// more than one tile of m there are no registers to load two steps.
  [[nodiscard]] constexpr bool copies_codes() const { return run == 8 && m_tiles > 1; }

  /// Steps whose codes are loaded at once, during the turn before: two where one block of a multiprocessor has to keep
  /// memory busy.
  [[nodiscard]] constexpr u32 turn_steps() const { return min_blocks() == 1 && !copies_codes() ? 2 : 1; }

  bool operator==(const FourBitMatmulTile&) const = default;
};

}  // namespace nibble::kernels
