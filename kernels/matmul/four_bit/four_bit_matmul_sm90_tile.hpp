// The sizes of what a block of FourBitMatmulSm90 computes. The kernel uses them, and so does the host, which chooses a
// kernel by them (kernels/host/matmul/four_bit/four_bit_matmul_config.hpp).
#pragma once
#include "kernels/device/types.hpp"

namespace nibble::kernels {

using device::u32;

/// A block takes `rows` of m and block_n() of n, and goes through k in steps of step_k. Each of its warpgroups has 64
/// of n, and of k every k_warpgroups-th group of 64.
struct FourBitMatmulSm90Tile {
  u32 rows;                        // a multiple of 32
  u32 n_warpgroups, k_warpgroups;  // that multiply

  static constexpr u32 step_k = 256, code_stages = 3;  // a stage of codes for each step, filled and emptied in turn
  [[nodiscard]] constexpr u32 warpgroups() const { return n_warpgroups * k_warpgroups; }
  [[nodiscard]] constexpr u32 threads() const { return 128 * warpgroups(); }  // that multiply
  [[nodiscard]] constexpr u32 block_n() const { return 64 * n_warpgroups; }
  [[nodiscard]] constexpr u32 block_k() const { return step_k; }
  [[nodiscard]] constexpr u32 max_m() const { return rows; }
  /// Of the 65536 registers of a multiprocessor, what a thread gets that multiplies, or that copies.
  [[nodiscard]] constexpr u32 consumer_registers() const {
    return warpgroups() == 4 ? 104 : warpgroups() == 3 ? 144 : 216;
  }
  [[nodiscard]] constexpr u32 copier_registers() const { return warpgroups() == 4 ? 64 : warpgroups() == 3 ? 80 : 72; }

  bool operator==(const FourBitMatmulSm90Tile&) const = default;
};

}  // namespace nibble::kernels
