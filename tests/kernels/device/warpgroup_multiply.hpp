// d [64, n] = a [64, 64] * transposed(b [n, 64]) by one warpgroup and one form of wgmma, with faults to plant. The
// tests of the layer and the calibration run it. Elements are small integers, so that sums are exact in any order.
#pragma once
#include "kernels/device/device.hpp"

namespace nibble::device::test {

enum class PlantedWgmma {
  nothing,
  no_register_fence,
  early_register_write,
  old_registers_again,
  scales_differ,
  lost_k_group
};

struct WgmmaForm {
  int n;
  bool is_f16 = false;
  Major a = Major::k, b = Major::k;  // how the tiles lie
  bool a_in_registers = false;
  bool cluster_barrier = false;  // instead of one of the block
  bool replaces = false;         // the first of the multiplications, by scale_d = 0
};

template <WgmmaForm form, PlantedWgmma fault = PlantedWgmma::nothing> struct WarpgroupMultiply {
  static constexpr u32 threads = 128, k = 64, n = form.n, steps = k / 16;
  static constexpr u32 a_bytes = 64 * 2 * k, b_bytes = n * 2 * k, b_chunk_bytes = 64 * 2 * k;
  static constexpr u32 shared_bytes = a_bytes + (n + 63) / 64 * b_chunk_bytes + 1024;

  Global<const u32> in;  // two elements each: a [64, 64], then b [n, 64]
  Global<float> out;     // [64, n]

  NIBBLE_DEVICE_AND_HOST static float low_element(u32 word) {
    return static_cast<float>(static_cast<i32>(word % 17) - 8);
  }
  NIBBLE_DEVICE_AND_HOST static float high_element(u32 word) { return low_element(word >> 8); }

  NIBBLE_DEVICE void operator()() const {
    const Shared<u8> all = dynamic_shared_aligned(1024);
    const Shared<u8> a = all.part(0, a_bytes), b = all.part(a_bytes, shared_bytes - 1024 - a_bytes);
    for (u32 i = thread_id(); i < (64 + n) * k / 2; i += threads) {
      const u32 row = 2 * i / k, at_k = 2 * i % k, halves = packed(ldg(in + i));
      if (row < 64)
        store(a, form.a, row, at_k, halves);
      else
        store(b, form.b, row - 64, at_k, halves);
    }
    fence_proxy_async();
    if constexpr (form.cluster_barrier)
      cluster_sync();
    else
      sync_threads();

    u32 registers[steps][4];
    NIBBLE_UNROLL for (u32 step = 0; step < steps; ++step) {
      NIBBLE_UNROLL for (u32 j = 0; j < 4; ++j) {
        const u32 row = 16 * warp_id() + lane_id() / 4 + 8 * (j % 2),
                  at_k = 16 * step + 2 * (lane_id() % 4) + 8 * (j / 2);
        registers[step][j] = packed(ldg(in + (row * k + at_k) / 2));
      }
    }
    float d[n / 2];
    NIBBLE_UNROLL for (u32 j = 0; j < n / 2; ++j) d[j] = form.replaces ? float_of(0x7fffffffu) : 0.0f;
    if constexpr (form.a_in_registers && fault != PlantedWgmma::no_register_fence)
      wgmma_fence(d, registers);
    else
      wgmma_fence(d);
    if constexpr (fault == PlantedWgmma::old_registers_again) {
      registers[1][2] ^= 1;
      wgmma_fence(d, registers);
      registers[1][2] ^= 1;
    }
    NIBBLE_UNROLL for (u32 step = 0; step < steps; ++step) multiply(d, registers[step], a, b, step);
    wgmma_commit();
    if constexpr (fault == PlantedWgmma::early_register_write) registers[1][2] ^= 1;
    if constexpr (form.a_in_registers)
      wgmma_wait<0>(d, registers);
    else
      wgmma_wait<0>(d);
    NIBBLE_UNROLL for (u32 j = 0; j < n / 2; ++j) {
      const u32 row = warp_id() * 16 + lane_id() / 4 + 8 * (j / 2 % 2),
                column = 8 * (j / 4) + 2 * (lane_id() % 4) + j % 2;
      st(out + (row * n + column), d[j]);
    }
  }

 private:
  NIBBLE_DEVICE static u32 packed(u32 word) {
    return form.is_f16 ? pack_f16(low_element(word), high_element(word))
                       : pack_bf16(low_element(word), high_element(word));
  }
  // Elements k and k + 1 of a row: in lines along k, or in lines of 64 rows.
  NIBBLE_DEVICE static void store(Shared<u8> tile, Major major, u32 row, u32 at_k, u32 halves) {
    if (major == Major::k) {
      sts((tile + swizzle128(row * 128 + 2 * at_k)).as<u32>(), halves);
      return;
    }
    const u32 chunk = row / 64 * b_chunk_bytes, column = row % 64 * 2;
    sts((tile + (chunk + swizzle128(at_k * 128 + column))).as<u16>(), static_cast<u16>(halves));
    sts((tile + (chunk + swizzle128((at_k + 1) * 128 + column))).as<u16>(), static_cast<u16>(halves >> 16));
  }
  // Of the 16 of k in a step.
  NIBBLE_DEVICE static u64 tile_at(Shared<u8> tile, Major major, u32 step) {
    const u32 group_bytes = fault == PlantedWgmma::lost_k_group ? 0 : 1024;
    return major == Major::k
               ? tile_descriptor(tile.address() + 32 * step, 16, 1024, Swizzle::bytes128)
               : tile_descriptor(tile.address() + 2048 * step, b_chunk_bytes, group_bytes, Swizzle::bytes128);
  }
  NIBBLE_DEVICE static void multiply(float (&d)[n / 2], u32 (&registers)[4], Shared<u8> a, Shared<u8> b, u32 step) {
    const u64 a_tile = tile_at(a, form.a, step), b_tile = tile_at(b, form.b, step);
    u32 scale_d = form.replaces && step == 0 ? 0 : 1;
    if constexpr (fault == PlantedWgmma::scales_differ) scale_d = lane_id() % 2;
    if constexpr (form.a_in_registers && form.is_f16) wgmma_f16<form.n, form.b>(d, registers, b_tile, scale_d);
    if constexpr (form.a_in_registers && !form.is_f16) wgmma_bf16<form.n, form.b>(d, registers, b_tile, scale_d);
    if constexpr (!form.a_in_registers && form.is_f16) wgmma_f16<form.n, form.a, form.b>(d, a_tile, b_tile, scale_d);
    if constexpr (!form.a_in_registers && !form.is_f16) wgmma_bf16<form.n, form.a, form.b>(d, a_tile, b_tile, scale_d);
  }
};

}  // namespace nibble::device::test
