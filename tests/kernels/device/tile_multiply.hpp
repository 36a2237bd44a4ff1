// y = w * transposed(x) for bf16 matrices of small integers: cp.async, ldmatrix, mma and a reduction, with faults to
// plant.
#pragma once
#include "kernels/device/device.hpp"

namespace nibble::device::test {

enum class Planted {
  nothing,
  no_tail_guard,
  past_shared_array,
  no_reuse_barrier,
  no_reduce_barrier,
  no_sync_warp,
  short_wait,
  shuffle_in_branch,
  lane_not_in_mask,
  early_exit,
  row_stride,
};

/// A block makes 16 x 16 values of y[n][m]; its four warps share out k, each with a ring of three stages.
template <Planted fault = Planted::nothing> struct TileMultiply {
  static constexpr u32 threads = 128;
  static constexpr i32 warps = 4, stages = 3, depth = 32;  // along k, per stage
  static constexpr i32 row_bytes = (fault == Planted::row_stride ? 8 : 16) + 2 * depth;
  static constexpr i32 tile_bytes = 16 * row_bytes, stage_bytes = 2 * tile_bytes;
  static constexpr u32 shared_bytes = warps * stages * stage_bytes;

  Global<const bf16> w, x;
  Global<float> y;
  i32 n, m, k;  // k is a multiple of 8

  NIBBLE_DEVICE void copy_rows(Shared<u8> tile, Global<const bf16> from, i32 first, i32 rows, i32 k0) const {
    NIBBLE_UNROLL for (i32 j = 0; j < 2; ++j) {
      const i32 piece = static_cast<i32>(lane_id()) + 32 * j, row = piece / 4, column = piece % 4;
      const bool inside = (first + row < rows || fault == Planted::no_tail_guard) && k0 + column * 8 < k;
      const i64 element = inside ? i64{first + row} * k + k0 + column * 8 : 0;
      cp_async16(tile + (row * row_bytes + column * 16), (from + element).template as<const u8>(), inside ? 16 : 0);
    }
  }

  NIBBLE_DEVICE void operator()() const {
    const u32 lane = lane_id(), warp = warp_id();
    const i32 n0 = static_cast<i32>(block_x()) * 16, m0 = static_cast<i32>(block_y()) * 16;
    if (fault == Planted::early_exit && n0 + static_cast<i32>(lane) % 16 >= n) return;
    const Shared<u8> all = dynamic_shared();
    const Shared<u8> ring = all.part(static_cast<i32>(warp) * stages * stage_bytes, stages * stage_bytes);
    const auto issue = [&](i32 i) {
      const i32 k0 = (static_cast<i32>(warp) + i * warps) * depth;
      if (k0 < k) {
        const Shared<u8> stage = ring.part(i % stages * stage_bytes, stage_bytes);
        copy_rows(stage.part(0, tile_bytes), w, n0, n, k0);
        copy_rows(stage.part(tile_bytes, tile_bytes), x, m0, m, k0);
      }
      cp_commit();
    };

    float sums[2][4] = {};
    for (i32 i = 0; i < stages - 1; ++i) issue(i);
    const i32 chunks = ceil_div(k, depth), mine = (chunks - static_cast<i32>(warp) + warps - 1) / warps;
    for (i32 i = 0; i < mine; ++i) {
      cp_wait<stages - 2 + (fault == Planted::short_wait ? 1 : 0)>();
      if constexpr (fault != Planted::no_sync_warp) sync_warp();
      issue(i + stages - 1);
      const Shared<u8> stage = ring.part(i % stages * stage_bytes, stage_bytes);
      const Shared<u8> w_tile = stage.part(0, tile_bytes), x_tile = stage.part(tile_bytes, tile_bytes);
      NIBBLE_UNROLL for (i32 step = 0; step < depth / 16; ++step) {
        const u32 w_row = lane % 16 + (fault == Planted::past_shared_array ? 1 : 0);
        const u32x4 a = ldsm_x4(w_tile + (w_row * row_bytes + step * 32 + lane / 16 * 16));
        const u32x4 b = ldsm_x4(x_tile + ((lane % 8 + lane / 16 * 8) * row_bytes + step * 32 + lane / 8 % 2 * 16));
        const u32 a_fragment[4] = {a.x, a.y, a.z, a.w}, first[2] = {b.x, b.y}, second[2] = {b.z, b.w};
        mma_bf16_16816(sums[0], a_fragment, first);
        mma_bf16_16816(sums[1], a_fragment, second);
      }
    }
    cp_wait<0>();
    // A shuffle that changes nothing, for faults that only shuffles have.
    if constexpr (fault == Planted::shuffle_in_branch) {
      if (n0 + static_cast<i32>(lane / 4) < n) sums[0][0] = shfl_idx(~0u, sums[0][0], lane);
    }
    if constexpr (fault == Planted::lane_not_in_mask) sums[0][0] = shfl_idx(0x7fffffff, sums[0][0], lane);

    if constexpr (fault != Planted::no_reuse_barrier) sync_threads();  // the ring becomes the sums of the warps
    const Shared<float> partial = all.part(0, warps * 1024).template as<float>();
    NIBBLE_UNROLL for (u32 j = 0; j < 2; ++j) {
      NIBBLE_UNROLL for (u32 e = 0; e < 4; ++e) {
        sts(partial + (warp * 256 + (lane / 4 + 8 * (e / 2)) * 16 + 8 * j + 2 * (lane % 4) + e % 2), sums[j][e]);
      }
    }
    if constexpr (fault != Planted::no_reduce_barrier) sync_threads();
    NIBBLE_UNROLL for (i32 j = 0; j < 2; ++j) {
      const i32 at = static_cast<i32>(thread_id()) + 128 * j, row = n0 + at / 16, column = m0 + at % 16;
      float sum = 0;
      NIBBLE_UNROLL for (i32 p = 0; p < warps; ++p) sum = add_rn(sum, lds(partial + (p * 256 + at)));
      if (row < n && column < m) st(y + (i64{row} * m + column), sum);
    }
  }
};

}  // namespace nibble::device::test
