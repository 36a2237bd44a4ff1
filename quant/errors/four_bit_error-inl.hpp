// The sums of four_bit_error.hpp, over blocks whose weights and codes are in L1. Included once per Highway target,
// hence the guard that toggles.
#if defined(NIBBLE_QUANT_FOUR_BIT_ERROR_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef NIBBLE_QUANT_FOUR_BIT_ERROR_INL
#undef NIBBLE_QUANT_FOUR_BIT_ERROR_INL
#else
#define NIBBLE_QUANT_FOUR_BIT_ERROR_INL
#endif

#include <hwy/highway.h>
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "quant/codecs/casts/cast-inl.hpp"
#include "quant/codecs/four_bit/four_bit.hpp"
#include "quant/errors/four_bit_error.hpp"
#include "quant/simd/lanes-inl.hpp"
#include "quant/simd/source-inl.hpp"
#include "quant/simd/table16-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace nibble::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Two fp16 numbers, the first in the lower half.
HWY_INLINE hn::Vec<DI> fp16_pairs(V lower, V upper) {
  const DI di;
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)
  const hn::Rebind<hwy::float16_t, D> df16;
  const hn::Rebind<std::uint16_t, D> d16;
  const auto bits_of = [&](V v) HWY_ATTR { return hn::PromoteTo(di, hn::BitCast(d16, hn::DemoteTo(df16, v))); };
#else
  const auto bits_of = [&](V v) HWY_ATTR {
    const auto bits = hn::BitCast(di, v);
    const auto sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(di, 0x8000));
    return hn::Or(fp16_bits(di, hn::And(bits, hn::Set(di, 0x7FFFFFFF)), 0x7C00), sign);
  };
#endif
  return hn::Or(bits_of(lower), hn::ShiftLeft<16>(bits_of(upper)));
}

// The fp16 number in the lower half of each; the upper half is ignored.
HWY_INLINE V fp32_of_lower_half(hn::Vec<DI> pairs) {
  const DI di;
  const auto bits = hn::And(pairs, hn::Set(di, 0xFFFF));
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)
  const hn::Rebind<hwy::float16_t, D> df16;
  const hn::Rebind<std::uint16_t, D> d16;
  return hn::PromoteTo(D(), hn::BitCast(df16, hn::DemoteTo(d16, bits)));
#else
  return hn::BitCast(D(), fp32_of_fp16(di, bits));
#endif
}

#if HWY_TARGET != HWY_SCALAR

// Even weights, then odd ones.
template <class Source> HWY_INLINE Two<V> load_even_odd(const std::byte* HWY_RESTRICT w, std::size_t i) {
  const D d;
  if constexpr (sizeof(typename Source::Run) == 8) {
    return Source::load_two(d, w, i);
  } else if constexpr (Source::size == 4) {
    V even, odd;
    hn::LoadInterleaved2(d, Source::at(w, i), even, odd);
    return {even, odd};
  } else {
    const V first = Source::load(d, w, i), second = Source::load(d, w, i + vector_lanes);
    return {hn::ConcatEven(d, second, first), hn::ConcatOdd(d, second, first)};
  }
}

// Sums of four blocks, folded as each block alone would be.
HWY_INLINE void fold_four(const Lanes16 (&sums)[4], float (*HWY_RESTRICT to)[4]) {
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  const D d;
  const auto pair = [&](const Lanes16& a, const Lanes16& b) HWY_ATTR {
    return hn::Add(hn::ConcatLowerLower(d, b.part[0], a.part[0]), hn::ConcatUpperUpper(d, b.part[0], a.part[0]));
  };
  const V first = pair(sums[0], sums[1]), second = pair(sums[2], sums[3]);
  const V even{_mm512_shuffle_f32x4(first.raw, second.raw, _MM_SHUFFLE(2, 0, 2, 0))};
  const V odd{_mm512_shuffle_f32x4(first.raw, second.raw, _MM_SHUFFLE(3, 1, 3, 1))};
  hn::StoreU(hn::Add(even, odd), d, to[0]);
#else
  for (std::size_t j = 0; j < 4; ++j) sums[j].fold(to[j]);
#endif
}

#endif

// The sums of a tile so far. Its blocks come in order, any number at a time; the order of all additions is the same.
template <class Source> class TileErrors {
 public:
  // `errors` may be null if the errors of blocks are not needed.
  HWY_INLINE TileErrors(const FourBitTables& tables, std::size_t blocksize, FourBitError* HWY_RESTRICT errors)
      : tables_(tables), blocksize_(blocksize), errors_(errors) {
    for (std::size_t k = 0; k < vector_parts; ++k) {
      min_absmax_[k] = hn::Set(D(), TileSums::max_absmax);
      max_absmax_[k] = hn::Zero(D());
    }
  }

  HWY_INLINE void add(const std::byte* HWY_RESTRICT w, const std::uint8_t* HWY_RESTRICT packed,
                      const float* HWY_RESTRICT absmax, std::size_t blocks) {
    while (blocks > 0) {
      const std::size_t count = std::min(batch - rows_, blocks), n = count * blocksize_;
      blocksize_ == 64 ? sum<HWY_TARGET != HWY_SCALAR>(w, packed, absmax, count) : sum<false>(w, packed, absmax, count);
      if (count == batch)
        std::memcpy(absmax_, absmax, sizeof absmax_);
      else
        for (std::size_t b = 0; b < count; ++b) absmax_[rows_ + b] = absmax[b];
      rows_ += count;
      if (rows_ == batch) {
        end_batch(errors_);
        if (errors_ != nullptr) errors_ += batch;
      }
      w += n * Source::size;
      packed += n / 2;
      absmax += count;
      blocks -= count;
    }
  }

  HWY_INLINE void end(TileSums& HWY_RESTRICT sums) {
    if (const std::size_t rest = rows_; rest > 0) {
      std::fill(absmax_ + rest, absmax_ + batch, 0.0f);
      std::memset(cross_[rest], 0, (batch - rest) * sizeof cross_[0]);
      std::memset(test_[rest], 0, (batch - rest) * sizeof test_[0]);
      FourBitError of_each[batch];
      end_batch(errors_ != nullptr ? of_each : nullptr);
      if (errors_ != nullptr) std::copy_n(of_each, rest, errors_);
    }
    for (std::size_t k = 0; k < vector_parts; ++k) square_[0].add(k, square_[1].part[k]);
    square_[0].fold(sums.square);
    tile_cross_.fold(sums.cross);
    tile_test_.fold(sums.test);
    V min = min_absmax_[0], max = max_absmax_[0];
    for (std::size_t k = 1; k < vector_parts; ++k) {
      min = hn::Min(min, min_absmax_[k]);
      max = hn::Max(max, max_absmax_[k]);
    }
    sums.is_in_range = hn::GetLane(hn::MinOfLanes(D(), min)) >= TileSums::min_absmax &&
                       hn::GetLane(hn::MaxOfLanes(D(), max)) <= TileSums::max_absmax;
  }

 private:
  static constexpr std::size_t group = 32;  // weights: an even and an odd one for each lane; blocksizes are multiples
  static constexpr std::size_t batch = 16;  // blocks

  // Puts X and T of `count` blocks, each in four lanes that still have to be added up, after those that are there.
#if HWY_TARGET != HWY_SCALAR

  template <bool blocks_of_64>
  HWY_INLINE void sum(const std::byte* HWY_RESTRICT w, const std::uint8_t* HWY_RESTRICT packed,
                      const float* HWY_RESTRICT absmax, std::size_t count) {
    const D d;
    const Table16<D> codebook(d, tables_.codebook.data());
    alignas(64) float room[16];
    Lanes16 even_square = square_[0], odd_square = square_[1];  // in registers
    const auto add_block = [&](std::size_t b, Lanes16& cross, Lanes16& test) HWY_ATTR {
      const Table16<D> value(d, codebook, absmax[b], room);  // what the codes are decoded to
      const std::size_t first = b * (blocks_of_64 ? 64 : blocksize_);
      if constexpr (blocks_of_64) {
        add_group(value, w, packed, first, even_square, odd_square, cross, test);
        add_group(value, w, packed, first + group, even_square, odd_square, cross, test);
      } else {
        for (std::size_t i = 0; i < blocksize_; i += group)
          add_group(value, w, packed, first + i, even_square, odd_square, cross, test);
      }
    };
    std::size_t b = 0;
    for (; b + 4 <= count; b += 4) {
      Lanes16 cross[4], test[4];
      for (std::size_t j = 0; j < 4; ++j) add_block(b + j, cross[j], test[j]);
      fold_four(cross, cross_ + rows_ + b);
      fold_four(test, test_ + rows_ + b);
    }
    for (std::size_t rest = count % 4; rest > 0; --rest, ++b) {
      Lanes16 cross, test;
      add_block(b, cross, test);
      cross.fold(cross_[rows_ + b]);
      test.fold(test_[rows_ + b]);
    }
    square_[0] = even_square;
    square_[1] = odd_square;
  }

  static HWY_INLINE void add_group(const Table16<D>& value, const std::byte* HWY_RESTRICT w,
                                   const std::uint8_t* HWY_RESTRICT packed, std::size_t i, Lanes16& even_square,
                                   Lanes16& odd_square, Lanes16& cross, Lanes16& test) {
    const DI di;
    const hn::Rebind<std::uint8_t, D> d8;
    for (std::size_t k = 0; k < vector_parts; ++k) {
      const std::size_t at = i + 2 * k * vector_lanes;
      const auto bytes = hn::PromoteTo(di, hn::LoadU(d8, packed + at / 2));
      const auto two = load_even_odd<Source>(w, at);
      const auto add = [&](Lanes16& squares, V t, V weight) HWY_ATTR {
        const V error = hn::Sub(t, weight);
        squares.add_product(k, error, error);
        cross.add_product(k, error, t);
        test.add_product(k, t, t);
      };
      add(even_square, value[hn::ShiftRight<4>(bytes)], two.v0);
      add(odd_square, value.at_lower_bits(bytes), two.v1);
    }
  }

#else

  template <bool>
  HWY_INLINE void sum(const std::byte* HWY_RESTRICT w, const std::uint8_t* HWY_RESTRICT packed,
                      const float* HWY_RESTRICT absmax, std::size_t count) {
    for (std::size_t b = 0; b < count; ++b) {
      Lanes16 cross, test;
      for (std::size_t i = b * blocksize_; i < (b + 1) * blocksize_; ++i) {
        const std::size_t lane = i / 2 % 16;
        const float t = tables_.codebook[packed[i / 2] >> (i % 2 == 0 ? 4 : 0) & 15] * absmax[b];
        const float error = t - Source::value(w, i);
        square_[i % 2].add_product(lane, error, error);
        cross.add_product(lane, error, t);
        test.add_product(lane, t, t);
      }
      cross.fold(cross_[rows_ + b]);
      test.fold(test_[rows_ + b]);
    }
  }

#endif

  // The sums of the blocks that begin with vector_lanes * k, from their four lanes: (0 + 2) + (1 + 3).
  static HWY_INLINE V add_rows(const float (*HWY_RESTRICT rows)[4], std::size_t k) {
    const D d;
    const float(*const row)[4] = rows + k * vector_lanes;
#if HWY_TARGET == HWY_SCALAR
    return hn::Set(d, ((*row)[0] + (*row)[2]) + ((*row)[1] + (*row)[3]));
#else
    constexpr std::size_t m = vector_lanes / 4;  // rows in a vector
    const hn::Repartition<double, D> d64;
    const auto add_two = [&](std::size_t first) HWY_ATTR {
      const V a = hn::Load(d, row[first]), b = hn::Load(d, row[first + m]);
      return hn::BitCast(d64, hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b)));
    };
    const auto left = add_two(0), right = add_two(2 * m);
    const V sums = hn::Add(hn::BitCast(d, hn::InterleaveLower(d64, left, right)),
                           hn::BitCast(d, hn::InterleaveUpper(d64, left, right)));
    if constexpr (m == 1) return sums;
    // Lane 4 j + i has block m i + j.
    alignas(64) static constexpr auto order = [] {
      std::array<std::int32_t, vector_lanes> lanes{};
      for (std::size_t b = 0; b < vector_lanes; ++b) lanes[b] = static_cast<std::int32_t>(b % m * 4 + b / m);
      return lanes;
    }();
    return hn::TableLookupLanes(sums, hn::SetTableIndices(d, order.data()));
#endif
  }

  // Adds X and T of 16 blocks to those of the tile, and makes a FourBitError of each.
  HWY_INLINE void end_batch(FourBitError* HWY_RESTRICT errors) {
    const D d;
    const V zero = hn::Zero(d);
    rows_ = 0;
    for (std::size_t k = 0; k < vector_parts; ++k) {
      const std::size_t b = k * vector_lanes;
      const V x = add_rows(cross_, k), t = add_rows(test_, k), a = hn::Load(d, absmax_ + b);
      tile_cross_.add(k, x);
      tile_test_.add(k, t);
      const V magnitude = hn::Abs(a);  // a search may choose a negative absmax
      const auto is_zero = hn::Eq(a, zero);
      min_absmax_[k] = hn::Min(min_absmax_[k], hn::IfThenElse(is_zero, hn::Set(d, TileSums::max_absmax), magnitude));
      max_absmax_[k] = hn::Max(max_absmax_[k], magnitude);
      if (errors == nullptr) continue;
      const V inverse = hn::IfThenZeroElse(is_zero, hn::Div(hn::Set(d, 1.0f), a)), square = hn::Mul(inverse, inverse);
      hn::StoreU(fp16_pairs(hn::Mul(x, square), hn::Mul(t, square)), DI(), reinterpret_cast<std::int32_t*>(errors + b));
    }
  }

  const FourBitTables& tables_;
  std::size_t blocksize_;
  FourBitError* errors_;
  Lanes16 square_[2], tile_cross_, tile_test_;             // squares of even and of odd weights
  V min_absmax_[vector_parts], max_absmax_[vector_parts];  // of absmax; zeros are ignored by the minimum
  std::size_t rows_ = 0;
  HWY_ALIGN float cross_[batch][4];
  HWY_ALIGN float test_[batch][4];
  HWY_ALIGN float absmax_[batch];
};

}  // namespace nibble::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
