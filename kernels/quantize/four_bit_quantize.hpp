// NF4 and FP4 from weights: codes and an absmax per block, the bytes of the CPU codecs.
//
// Bytes per weight: 2 read (bf16), 0.5 + 4 / 64 written: 2.56, so 1.26e12 weights/s are 75 % of the bandwidth that a
// copy has on an H200 (4.3 TB/s), which leaves 23 instructions per weight. Hence: 16-byte loads, four of them in
// flight per thread; a block is a group of lanes, which find its absmax by shuffles; a code takes no branch and one
// lookup, in a register of another lane; and codes are stored as whole words side by side. docs/quantize.md
// counts the instructions.
//
// IEEE arithmetic where the CPU has it: the reciprocal and the product are rounded once, nothing is contracted.
#pragma once
#include <cmath>

#include "kernels/device/device.hpp"
#include "kernels/quantize/weight_runs.hpp"
#include "nibble/fp4.hpp"
#include "nibble/nf4.hpp"

namespace nibble::kernels {

/// How to find the number of midpoints below v in [-1, 1], which is the code of NF4. A parabola through them,
///
///   g = round(middle + v * (slope - curve * |v|)) in units of 2^-fraction_bits, without that fraction
///
/// is right or one too small, so threshold[g] settles it: number = g + (v > threshold[g]). The addition that rounds
/// leaves g in the low bits of the sum: with a fraction of 0 bits these are the index of the shuffle as they are.
struct FourBitSearch {
  float threshold[16];  // the midpoints, ascending; the rest infinite
  float middle, slope, curve;
  u32 fraction_bits;
  float rounder;     // 1.5 * 2^(23 - fraction_bits), whose last bit is worth that unit
  u32 rounder_bits;  // what it adds to g
};

/// Does not compile as a constant if the parabola misses a number by more than one. A tenth of what it may be off is
/// kept for the roundings of the device.
constexpr FourBitSearch make_search(const float (&ascending)[16], bool splits_zero, float middle, float slope,
                                    float curve, u32 fraction_bits) {
  FourBitSearch search{.threshold = {},
                       .middle = middle,
                       .slope = slope,
                       .curve = curve,
                       .fraction_bits = fraction_bits,
                       .rounder = 12582912.0f / static_cast<float>(1u << fraction_bits),
                       .rounder_bits = (0x4b400000u - (fraction_bits << 23)) >> fraction_bits};
  u32 midpoints = 0;
  for (u32 i = 0; i < 15; ++i) {
    const float midpoint = (ascending[i] + ascending[i + 1]) / 2;
    if (!splits_zero || midpoint != 0) search.threshold[midpoints++] = midpoint;
  }
  for (u32 i = midpoints; i < 16; ++i) search.threshold[i] = infinity;

  const double half_unit = 0.5 / (1 << fraction_bits), peak = double{slope} / (2 * double{curve}), slack = 0.002;
  bool right = true;
  const auto check = [&](double v, u32 number) {
    const double position = middle + half_unit + v * (slope - curve * (v < 0 ? -v : v));
    right = right && position > (number == 0 ? 0 : number - 1) + slack && position < number + 1 - slack;
  };
  for (u32 number = 0; number <= midpoints; ++number) {
    const double from = number == 0 ? -1.0 : search.threshold[number - 1];
    const double to = number == midpoints ? 1.0 : search.threshold[number];
    check(from, number);
    check(to, number);
    for (const double turn : {-peak, peak})
      if (from < turn && turn < to) check(turn, number);
  }
  if (!right) throw "the parabola misses a code by more than one";
  return search;
}

struct Nf4 {
  static constexpr FourBitSearch search = make_search(nf4::codebook.value, false, 7.0f, 11.9375f, 4.5f, 0);
  static constexpr bool splits_zero = false;
  /// From 8 numbers to 8 codes.
  NIBBLE_DEVICE static u32 codes(u32 numbers) { return numbers; }
};

/// In ascending order the codes of FP4 are 11 10 13 12 15 14 9 0 8 1 6 7 4 5 2 3. Codes 0 and 8 both have the value 0,
/// and their midpoint is 0. It is too close to its neighbours for any parabola, so it is not in the table; v > 0 adds
/// one instead.
struct Fp4 {
  static constexpr float ascending[16] = {
      fp4::codebook.value[11], fp4::codebook.value[10], fp4::codebook.value[13], fp4::codebook.value[12],
      fp4::codebook.value[15], fp4::codebook.value[14], fp4::codebook.value[9],  fp4::codebook.value[0],
      fp4::codebook.value[8],  fp4::codebook.value[1],  fp4::codebook.value[6],  fp4::codebook.value[7],
      fp4::codebook.value[4],  fp4::codebook.value[5],  fp4::codebook.value[2],  fp4::codebook.value[3]};
  static constexpr FourBitSearch search = make_search(ascending, true, 7.0f, 15.875f, 9.75f, 6);
  static constexpr bool splits_zero = true;

  /// Numbers 8 ... 15 are magnitudes 0 ... 7, numbers 7 ... 0 the same below zero; bit 1 of a magnitude flips its bit
  /// 2, and bit 3 is the sign, but the other way round for magnitude 0. All eight numbers at a time.
  NIBBLE_DEVICE static u32 codes(u32 numbers) {
    const u32 upper = numbers >> 3 & 0x11111111u;
    const u32 magnitude = (numbers ^ (upper ^ 0x11111111u) * 7) & 0x77777777u;
    const u32 not_zero = (magnitude | magnitude >> 1 | magnitude >> 2) & 0x11111111u;
    return (magnitude ^ (magnitude << 1 & 0x44444444u)) | (upper ^ not_zero) << 3;
  }
};

/// A thread block takes 4096 weights, which any blocksize divides; a thread takes 64 bytes of them, so that its fixed
/// costs are small.
template <class T, class Format> struct FourBitQuantize {
  static constexpr u32 run = weights_per_run<T>, runs = 4, step = 32 * run;  // from a thread's run to its next
  static constexpr u32 tile = 4096, threads = tile / (run * runs), min_blocks = 1024 / threads;  // 64 registers
  static constexpr u32 warps = threads / 32, warp_weights = tile / warps;
  static constexpr u32 grid_width = 1u << 30;  // thread blocks come in rows of so many

  Global<const T> weights;
  u64 size;
  u32 block_bits;  // log2 of the blocksize
  bool aligned;    // weights to 16 bytes, packed to 4
  Global<u8> packed;
  Global<float> absmax;
  Global<u64> nonfinite_blocks;           // may be null
  FourBitSearch search = Format::search;  // as an argument, because lanes index it

  NIBBLE_DEVICE void operator()() const {
    NIBBLE_SHARED(float, warp_largest, 2 * warps);
    const u64 begin = (u64{block_y()} * grid_width + block_x()) * tile;
    if (begin >= size) return;
    const u32 first = warp_id() * warp_weights + lane_id() * run;  // of the tile
    const u32 count = begin + tile <= size ? tile : static_cast<u32>(size - begin);
    const bool whole = aligned && count == tile;
    const Global<const T> from = weights + static_cast<i64>(begin) + first;

    float w[runs][run];
    if (whole) {
      u32x4 bits[runs];
      NIBBLE_UNROLL for (u32 r = 0; r < runs; ++r) bits[r] = ldcs((from + r * step).template as<const u32x4>());
      NIBBLE_UNROLL for (u32 r = 0; r < runs; ++r) widen_run(bits[r], w[r], T{});
    } else {
      // Weights past the end count as zeros.
      NIBBLE_UNROLL for (u32 r = 0; r < runs; ++r) {
        NIBBLE_UNROLL for (u32 i = 0; i < run; ++i) {
          w[r][i] = first + r * step + i < count ? widen(ldcs(from + (r * step + i))) : 0.0f;
        }
      }
    }

    float largest[runs];
    NIBBLE_UNROLL for (u32 r = 0; r < runs; ++r) {
      largest[r] = std::fabs(w[r][0]);
      NIBBLE_UNROLL for (u32 i = 1; i < run; ++i) largest[r] = max_nan(largest[r], std::fabs(w[r][i]));
    }
    if (!largest_of_blocks(largest, warp_largest)) repair(first, count, w, largest, warp_largest + warps);

    // Four neighbours share blocks, so that each computes the reciprocal and stores the absmax for one of their runs.
    static_assert(runs == 4);
    const u32 own_run = lane_id() % runs;
    const float even = (lane_id() & 2) != 0 ? largest[2] : largest[0],
                odd = (lane_id() & 2) != 0 ? largest[3] : largest[1];
    const float own = (lane_id() & 1) != 0 ? odd : even;
    const float inverse = rcp_rn(max_nan(own, 1e-38f));

    const Global<float> absmax_to = absmax + static_cast<i64>(begin >> block_bits);
    const u32 own_at = first - own_run * run + own_run * step;  // where the first of the four has that run
    if (begins_block(own_at, count)) st(absmax_to + (own_at >> block_bits), own);

    dependency_launch();  // of the sums of absmax, if double quantization follows

    const float threshold = search.threshold[lane_id() % 16];
    u32 codes[runs];
    NIBBLE_UNROLL for (u32 r = 0; r < runs; ++r) {
      codes[r] = Format::codes(numbers(w[r], shfl_idx(~0u, inverse, lane_id() - lane_id() % runs + r), threshold));
    }

    const Global<u8> to = packed + static_cast<i64>(begin / 2) + first / 2;
    if (whole) {
      NIBBLE_UNROLL for (u32 r = 0; r < runs; ++r) store_codes(to + r * step / 2, codes[r]);
    } else {
      NIBBLE_UNROLL for (u32 r = 0; r < runs; ++r) {
        NIBBLE_UNROLL for (u32 i = 0; i < run; i += 2) {
          if (first + r * step + i < count) stcs(to + (r * step + i) / 2, static_cast<u8>(codes[r] >> 4 * i));
        }
      }
    }
  }

 private:
  [[nodiscard]] NIBBLE_DEVICE bool begins_block(u32 at, u32 count) const {
    return (at & ((1u << block_bits) - 1)) == 0 && at < count;
  }

  // Turns the largest magnitudes of runs into those of the blocks that the runs are in. Returns whether all are finite:
  // one answer for the lanes that continue together.
  NIBBLE_DEVICE bool largest_of_blocks(float (&largest)[runs], Shared<float> warp_largest) const {
    const u32 blocksize = 1u << block_bits;
    const u32 lanes = blocksize / run < 32 ? blocksize / run : 32;
    for (u32 bits = 1; bits < lanes; bits *= 2) {
      NIBBLE_UNROLL for (u32 r = 0; r < runs; ++r) largest[r] = max_nan(largest[r], shfl_xor(~0u, largest[r], bits));
    }
    NIBBLE_UNROLL for (u32 apart = 1; apart < runs; apart *= 2) {
      if (apart * step >= blocksize) continue;
      NIBBLE_UNROLL for (u32 r = 0; r < runs; ++r) {
        if ((r & apart) == 0) largest[r] = largest[r + apart] = max_nan(largest[r], largest[r + apart]);
      }
    }
    float most = largest[0];
    NIBBLE_UNROLL for (u32 r = 1; r < runs; ++r) most = max_nan(most, largest[r]);
    if (blocksize <= warp_weights) return all(~0u, most < infinity);

    if (lane_id() == 0) sts(warp_largest + warp_id(), most);
    sync_threads();
    const u32 together = blocksize / warp_weights;  // warps
    float own = 0;
    for (u32 warp = 0; warp < warps; ++warp) {
      const float other = lds(warp_largest + warp);
      most = max_nan(most, other);
      if ((warp ^ warp_id()) < together) own = max_nan(own, other);
    }
    NIBBLE_UNROLL for (u32 r = 0; r < runs; ++r) largest[r] = own;
    return most < infinity;
  }

  // Makes NaN 0, and infinities the largest finite magnitude of their block. Blocks that are finite stay as they are.
  NIBBLE_DEVICE void repair(u32 first, u32 count, float (&w)[runs][run], float (&largest)[runs],
                            Shared<float> warp_largest) const {
    NIBBLE_UNROLL for (u32 r = 0; r < runs; ++r) {
      if (begins_block(first + r * step, count) && !(largest[r] < infinity) && !nonfinite_blocks.is_null())
        atomic_add(nonfinite_blocks, 1);
      largest[r] = 0;
      NIBBLE_UNROLL for (u32 i = 0; i < run; ++i) {
        const float magnitude = std::fabs(w[r][i]);
        if (magnitude < infinity) largest[r] = max_nan(largest[r], magnitude);
      }
    }
    largest_of_blocks(largest, warp_largest);
    NIBBLE_UNROLL for (u32 r = 0; r < runs; ++r) {
      NIBBLE_UNROLL for (u32 i = 0; i < run; ++i) {
        const float weight = w[r][i];
        if (weight == infinity) w[r][i] = largest[r];
        if (weight == -infinity) w[r][i] = -largest[r];
        if (weight != weight) w[r][i] = 0;
      }
    }
  }

  // 1 if v > bound, else 0: the sign of a difference, which is exact, and one instruction adds it.
  NIBBLE_DEVICE static u32 is_above(float v, float bound) { return bits_of(sub_rn(bound, v)) >> 31; }

  // The numbers of a run, a nibble each: the first weight in the upper nibble of the first byte. Each sum is too large
  // by a constant; because the steps are linear, it is subtracted at the end.
  NIBBLE_DEVICE u32 numbers(const float (&w)[run], float inverse, float threshold) const {
    constexpr FourBitSearch s = Format::search;
    constexpr float rounder = s.rounder + s.middle;
    constexpr u32 excess = s.rounder_bits * (run == 8 ? 0x11111111u : 0x1111u);
    u32 joined = 0;
    NIBBLE_UNROLL for (u32 k = 0; k < run; ++k) {
      const float v = mul_rn(w[(run - 1 - k) ^ 1], inverse);
      const float rounded = fma_rn(v, fma_rn(-s.curve, std::fabs(v), s.slope), rounder);
      const u32 guess = bits_of(rounded) >> s.fraction_bits;  // the low 5 bits are the guess
      u32 number = guess + is_above(v, shfl_idx(~0u, threshold, guess));
      if constexpr (Format::splits_zero) number += is_above(v, 0.0f);
      joined = joined * 16 + number;
    }
    return joined - excess;
  }

  NIBBLE_DEVICE static void store_codes(Global<u8> to, u32 codes) {
    if constexpr (run == 8)
      stcs(to.as<u32>(), codes);
    else
      stcs(to.as<u16>(), static_cast<u16>(codes));
  }
};

}  // namespace nibble::kernels
