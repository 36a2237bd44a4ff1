// d = a * transposed(b) for bf16 matrices of small integers: a warp that copies by TMA and a warpgroup that multiplies,
// with faults to plant. The second form writes a's tiles by stores, as a kernel that decodes weights would.
#pragma once
#include "kernels/device/device.hpp"

namespace nibble::device::test {

enum class PlantedAsync {
  nothing,
  no_empty_wait,
  no_full_wait,
  too_few_bytes,
  too_many_bytes,
  no_proxy_fence,
  no_named_barrier,
  no_last_wait,
  no_wgmma_fence,
  wrong_descriptor,
  early_release,
  wrong_parity,
  no_barrier_after_init,
  not_swizzled,
};

/// A block makes 64 x 16 values of d[n][m].
template <PlantedAsync fault = PlantedAsync::nothing, bool by_stores = false> struct TmaMultiply {
  static constexpr u32 threads = 160;
  static constexpr i32 stages = 3, a_bytes = 64 * 128, b_bytes = 16 * 128, stage_bytes = a_bytes + b_bytes;
  static constexpr u32 expected_bytes = by_stores ? b_bytes : stage_bytes;
  static constexpr u32 shared_bytes = stages * stage_bytes + 16 * stages + 1024;

  TensorMap a_map, b_map;
  Global<const bf16> a;
  Global<float> d;
  i32 n, m, k;

  NIBBLE_DEVICE void operator()() const {
    const Shared<u8> all = dynamic_shared_aligned(1024);
    const Shared<u64> full = all.part(stages * stage_bytes, 8 * stages).as<u64>();
    const Shared<u64> empty = all.part(stages * stage_bytes + 8 * stages, 8 * stages).as<u64>();
    if (thread_id() == 0) {
      for (i32 s = 0; s < stages; ++s) {
        mbar_init(full + s, 1);
        mbar_init(empty + s, 4);
      }
      mbar_init_fence();
    }
    if constexpr (fault != PlantedAsync::no_barrier_after_init) sync_threads();
    if (warp_id() == 4)
      copy(all, full, empty);
    else
      multiply(all, full, empty);
  }

 private:
  NIBBLE_DEVICE void copy(Shared<u8> all, Shared<u64> full, Shared<u64> empty) const {
    if (lane_id() != 0) return;
    for (i32 i = 0; i < ceil_div(k, 64); ++i) {
      const i32 s = i % stages, n0 = static_cast<i32>(block_x()) * 64;
      if constexpr (fault != PlantedAsync::no_empty_wait) mbar_wait(empty + s, (static_cast<u32>(i / stages) & 1) ^ 1);
      mbar_expect_tx_arrive(full + s, fault == PlantedAsync::too_few_bytes    ? expected_bytes - b_bytes
                                      : fault == PlantedAsync::too_many_bytes ? expected_bytes + 16
                                                                              : expected_bytes);
      if constexpr (!by_stores) tma_load_2d(all.part(s * stage_bytes, a_bytes), a_map, i * 64, n0, full + s);
      tma_load_2d(all.part(s * stage_bytes + a_bytes, b_bytes), b_map, i * 64, 0, full + s);
    }
  }

  NIBBLE_DEVICE void store_tile(Shared<u8> tile, i32 i) const {
    NIBBLE_UNROLL for (i32 j = 0; j < 4; ++j) {
      const i32 piece = static_cast<i32>(thread_id()) + 128 * j, row = piece / 8, column = piece % 8;
      const i32 n0 = static_cast<i32>(block_x()) * 64;
      u32x4 value{};
      if (n0 + row < n && i * 64 + column * 8 < k)
        value = ldg((a + (i64{n0 + row} * k + i * 64 + column * 8)).as<const u32x4>());
      const u32 offset = static_cast<u32>(row * 128 + column * 16);
      sts((tile + (fault == PlantedAsync::not_swizzled ? offset : swizzle128(offset))).as<u32x4>(), value);
    }
    if constexpr (fault != PlantedAsync::no_proxy_fence) fence_proxy_async();
    if constexpr (fault != PlantedAsync::no_named_barrier) bar_sync(1, 128);
  }

  NIBBLE_DEVICE void multiply(Shared<u8> all, Shared<u64> full, Shared<u64> empty) const {
    constexpr bool early = fault == PlantedAsync::early_release;
    float sums[8] = {};
    const i32 chunks = ceil_div(k, 64);
    for (i32 i = 0; i < chunks; ++i) {
      const i32 s = i % stages;
      const Shared<u8> a_tile = all.part(s * stage_bytes, a_bytes);
      const Shared<u8> b_tile = all.part(s * stage_bytes + a_bytes, b_bytes);
      if constexpr (fault != PlantedAsync::no_full_wait)
        mbar_wait(full + s,
                  (fault == PlantedAsync::wrong_parity ? static_cast<u32>(i) : static_cast<u32>(i / stages)) & 1);
      if constexpr (by_stores) store_tile(a_tile, i);
      if constexpr (fault != PlantedAsync::no_wgmma_fence) wgmma_fence(sums);
      NIBBLE_UNROLL for (u32 step = 0; step < 4; ++step)
          wgmma_bf16<16>(sums,
                         tile_descriptor(a_tile.address() + step * 32, 16,
                                         fault == PlantedAsync::wrong_descriptor ? 512 : 1024, Swizzle::bytes128),
                         tile_descriptor(b_tile.address() + step * 32, 16, 1024, Swizzle::bytes128));
      wgmma_commit();
      if (early && lane_id() == 0) mbar_arrive(empty + s);
      if (fault != PlantedAsync::no_last_wait || i + 1 < chunks) wgmma_wait<0>(sums);
      if (!early && lane_id() == 0) mbar_arrive(empty + s);
    }
    NIBBLE_UNROLL for (i32 e = 0; e < 8; ++e) {
      const i32 row = static_cast<i32>(block_x() * 64 + thread_id() / 32 * 16 + lane_id() / 4) + 8 * (e / 2 % 2);
      const i32 column = 8 * (e / 4) + 2 * static_cast<i32>(lane_id() % 4) + e % 2;
      if (row < n && column < m) st(d + (i64{row} * m + column), sums[e]);
    }
  }
};

}  // namespace nibble::device::test
