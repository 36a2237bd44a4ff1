// LLM.int8() from weights: codes and an absmax per row, the bytes of the CPU codec.
//
// Bytes per weight: 2 read (bf16), 1 written: 3, so 1.07e12 weights/s are 75 % of the bandwidth that a copy has on an
// H200 (4.3 TB/s), which leaves 27 instructions per weight. The whole row must be read before its first code: its first
// 24 KiB wait in the registers of the thread block, and the rest of a longer row is read a second time, from the L2
// cache. docs/quantize.md counts the instructions.
#pragma once
#include <cmath>

#include "kernels/quantize/weight_runs.hpp"

namespace nibble::kernels {

inline constexpr float fp16_overflow = 65520.0f;  // what rounds to infinity, and the largest that does not
inline constexpr float fp16_largest = 65504.0f;

/// A thread block takes a row, and its size depends on the row: with one warp it needs no barrier.
template <class T, u32 Threads> struct Int8Quantize {
  static constexpr u32 threads = Threads, warps = threads / 32, min_blocks = 768 / threads;
  static constexpr u32 run = weights_per_run<T>, kept = 4;  // runs of a thread in registers
  static constexpr u32 row_bytes_kept = threads * kept * 16;
  static constexpr u32 grid_width = 1u << 30;  // n is spread over rows of so many blocks

  Global<const T> weights;
  u64 n, k, stride;
  bool aligned;  // every run of every row to 16 bytes and its codes to as many as they are, and rows are whole runs
  Global<i8> codes;
  Global<float> absmax;
  Global<u64> nonfinite_rows;  // may be null

  NIBBLE_DEVICE void operator()() const {
    NIBBLE_SHARED(float, warp_largest, 2 * warps);
    const u64 row = u64{block_y()} * grid_width + block_x();
    if (row >= n) return;
    const Global<const T> from = weights + static_cast<i64>(row * stride);
    const Global<i8> to = codes + static_cast<i64>(row * k);

    const u32 near = k < threads * kept * run ? static_cast<u32>(k) : threads * kept * run;
    u32x4 bits[kept];
    if (aligned) {
      NIBBLE_UNROLL for (u32 r = 0; r < kept; ++r) {
        bits[r] = offset(r) < near ? ldcs((from + offset(r)).template as<const u32x4>()) : u32x4{};
      }
    } else {
      NIBBLE_UNROLL for (u32 r = 0; r < kept; ++r) bits[r] = load_some(from, offset(r));
    }

    const auto largest_by = [&](auto&& magnitude_of) {
      float largest = 0;
      const auto look_at = [&](u32x4 some) {
        float w[run];
        widen_run(some, w, T{});
        NIBBLE_UNROLL for (u32 i = 0; i < run; ++i) largest = max_nan(largest, magnitude_of(w[i]));
      };
      NIBBLE_UNROLL for (u32 r = 0; r < kept; ++r) look_at(bits[r]);
      for (u64 at = offset(kept); at < k; at += u64{threads} * run) look_at(load(from, at));
      return largest;
    };
    float largest = largest_of_row(largest_by([](float w) { return std::fabs(w); }), warp_largest);
    const bool plain = largest < fp16_overflow;
    if (!plain) {
      if (thread_id() == 0 && !nonfinite_rows.is_null()) atomic_add(nonfinite_rows, 1);
      largest =
          largest_of_row(largest_by([](float w) {
                           const float magnitude = std::fabs(w);
                           return magnitude < infinity ? (magnitude < fp16_overflow ? magnitude : fp16_largest) : 0.0f;
                         }),
                         warp_largest + warps);
    }
    // Rounding keeps the order, so the largest of the rounded weights is the largest weight, rounded.
    const float row_absmax = to_float(to_f16(largest));
    const float scale = row_absmax == 0 ? 0.0f : mul_rn(rcp_rn(row_absmax), 127.0f);
    if (thread_id() == 0) st(absmax + static_cast<i64>(row), row_absmax);

    const auto quantize = [&](u32x4 some, u64 at) {
      float w[run];
      widen_run(some, w, T{});
      if (!plain) {
        NIBBLE_UNROLL for (u32 i = 0; i < run; ++i) w[i] = repaired(w[i], row_absmax);
      }
      store(to, at, w, scale);
    };
    NIBBLE_UNROLL for (u32 r = 0; r < kept; ++r) {
      if (offset(r) < near) quantize(bits[r], offset(r));
    }
    for (u64 at = offset(kept); at < k; at += u64{threads} * run) quantize(load(from, at), at);
  }

 private:
  // Of the r-th run of this thread, in the row.
  [[nodiscard]] NIBBLE_DEVICE static u32 offset(u32 r) { return (r * threads + thread_id()) * run; }

  [[nodiscard]] NIBBLE_DEVICE u32x4 load(Global<const T> from, u64 at) const {
    return aligned ? ld((from + static_cast<i64>(at)).template as<const u32x4>()) : load_some(from, at);
  }
  // Weight by weight; what is past the end counts as zeros.
  [[nodiscard]] NIBBLE_DEVICE u32x4 load_some(Global<const T> from, u64 at) const {
    u32 words[4] = {0, 0, 0, 0};
    NIBBLE_UNROLL for (u32 i = 0; i < run; ++i) {
      if (at + i < k) words[i * 4 / run] |= bits_of_weight(ld(from + static_cast<i64>(at + i))) << i * 128 / run % 32;
    }
    return {words[0], words[1], words[2], words[3]};
  }

  [[nodiscard]] NIBBLE_DEVICE static float largest_of_row(float largest, Shared<float> warp_largest) {
    NIBBLE_UNROLL for (u32 bits = 16; bits > 0; bits /= 2) largest = max_nan(largest, shfl_xor(~0u, largest, bits));
    if constexpr (warps > 1) {
      if (lane_id() == 0) sts(warp_largest + warp_id(), largest);
      sync_threads();
      NIBBLE_UNROLL for (u32 warp = 0; warp < warps; ++warp) largest = max_nan(largest, lds(warp_largest + warp));
    }
    return largest;
  }

  // The finite weight that replaces a weight, in a row of this absmax.
  [[nodiscard]] NIBBLE_DEVICE static float repaired(float weight, float absmax) {
    const float magnitude = std::fabs(weight);
    if (magnitude != magnitude) return 0;
    if (magnitude < fp16_overflow) return weight;
    return std::copysign(magnitude == infinity ? absmax : fp16_largest, weight);
  }

  // Adding 1.5 * 2^23 rounds to an integer, halves to even, and leaves it in the low byte.
  [[nodiscard]] NIBBLE_DEVICE static u32 code_of(float half, float scale) {
    return bits_of(add_rn(mul_rn(half, scale), 12582912.0f));
  }

  NIBBLE_DEVICE void store(Global<i8> to, u64 at, const float (&w)[run], float scale) const {
    u32 words[run / 4];
    NIBBLE_UNROLL for (u32 i = 0; i < run; i += 4) {
      const u32 low = pack_f16(w[i], w[i + 1]), high = pack_f16(w[i + 2], w[i + 3]);
      const u32 pair = prmt(code_of(half_at(low, 0), scale), code_of(half_at(low, 16), scale), 0x0040);
      const u32 next = prmt(code_of(half_at(high, 0), scale), code_of(half_at(high, 16), scale), 0x0040);
      words[i / 4] = prmt(pair, next, 0x5410);
    }
    if (!aligned) {
      NIBBLE_UNROLL for (u32 i = 0; i < run; ++i) {
        if (at + i < k) stcs(to + static_cast<i64>(at + i), static_cast<i8>(words[i / 4] >> i % 4 * 8));
      }
    } else if constexpr (run == 8) {
      stcs((to + static_cast<i64>(at)).template as<u32x2>(), u32x2{words[0], words[1]});
    } else {
      stcs((to + static_cast<i64>(at)).template as<u32>(), words[0]);
    }
  }
  [[nodiscard]] NIBBLE_DEVICE static float half_at(u32 pair, u32 bit) {
    return to_float(f16{static_cast<u16>(pair >> bit)});
  }
};

}  // namespace nibble::kernels
