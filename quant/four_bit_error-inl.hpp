// The sums of quant/four_bit_error.hpp, over blocks whose weights and codes are in L1. Included once per Highway
// target, hence the guard that toggles.
#if defined(NIBBLE_QUANT_FOUR_BIT_ERROR_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef NIBBLE_QUANT_FOUR_BIT_ERROR_INL
#undef NIBBLE_QUANT_FOUR_BIT_ERROR_INL
#else
#define NIBBLE_QUANT_FOUR_BIT_ERROR_INL
#endif

#include <hwy/highway.h>
#include <cstddef>
#include <cstdint>

#include "quant/four_bit.hpp"
#include "quant/four_bit_error.hpp"
#include "quant/lanes-inl.hpp"
#include "quant/source-inl.hpp"
#include "quant/table16-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace nibble::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

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

#endif

// E, X and T of the even or of the odd weights: twice 16 lanes, because an addition waits for the one before.
struct HalfErrors {
  Lanes16 square, cross, test;

  // Written out, because the one that a compiler makes is for another target.
  HWY_INLINE HalfErrors() {}  // NOLINT(modernize-use-equals-default)

  HWY_INLINE void add(std::size_t k, V t, V weight) {
    const V error = hn::Sub(t, weight);
    square.add_product(k, error, error);
    cross.add_product(k, error, t);
    test.add_product(k, t, t);
  }
};

// The sums of a tile on the way. Its blocks come in turn, however many at a time: the order of all sums is the same.
template <class Source> class TileErrors {
 public:
  HWY_INLINE TileErrors(const FourBitTables& tables, std::size_t blocksize) : tables_(tables), blocksize_(blocksize) {}

  HWY_INLINE void add(const std::byte* HWY_RESTRICT w, const std::uint8_t* HWY_RESTRICT packed,
                      const float* HWY_RESTRICT absmax, std::size_t blocks) {
    blocksize_ == 64 ? sum<HWY_TARGET != HWY_SCALAR>(w, packed, absmax, blocks) : sum<false>(w, packed, absmax, blocks);
  }

  // `absmax` of all `blocks` that were added.
  HWY_INLINE void end(const float* HWY_RESTRICT absmax, std::size_t blocks, TileSums& HWY_RESTRICT sums) {
    const auto fold = [](Lanes16& even, const Lanes16& odd, float* HWY_RESTRICT to) HWY_ATTR {
      for (std::size_t k = 0; k < vector_parts; ++k) even.add(k, odd.part[k]);
      even.fold(to);
    };
    fold(even_.square, odd_.square, sums.square);
    fold(even_.cross, odd_.cross, sums.cross);
    fold(even_.test, odd_.test, sums.test);
    const D d;
    V min = hn::Set(d, TileSums::max_absmax), max = hn::Zero(d);
    const auto look_at = [&](const float* HWY_RESTRICT values) HWY_ATTR {
      const V a = hn::LoadU(d, values);
      min = hn::Min(min, hn::IfThenElse(hn::Eq(a, hn::Zero(d)), min, a));
      max = hn::Max(max, a);
    };
    std::size_t b = 0;
    for (; b + vector_lanes <= blocks; b += vector_lanes) look_at(absmax + b);
    alignas(64) float last[vector_lanes] = {};
    for (std::size_t i = 0; b < blocks; ++b, ++i) last[i] = absmax[b];
    look_at(last);
    sums.is_in_range = hn::GetLane(hn::MinOfLanes(d, min)) >= TileSums::min_absmax &&
                       hn::GetLane(hn::MaxOfLanes(d, max)) <= TileSums::max_absmax;
  }

 private:
  static constexpr std::size_t group = 32;  // weights: an even and an odd one for each lane; blocksizes are multiples

#if HWY_TARGET != HWY_SCALAR

  template <bool blocks_of_64>
  HWY_INLINE void sum(const std::byte* HWY_RESTRICT w, const std::uint8_t* HWY_RESTRICT packed,
                      const float* HWY_RESTRICT absmax, std::size_t blocks) {
    const D d;
    const Table16<D> codebook(d, tables_.codebook.data());
    alignas(64) float room[16];
    HalfErrors even = even_, odd = odd_;  // in registers
    for (std::size_t b = 0; b < blocks; ++b) {
      const Table16<D> value(d, codebook, absmax[b], room);  // what the codes are decoded to
      const std::size_t first = b * (blocks_of_64 ? 64 : blocksize_);
      if constexpr (blocks_of_64) {
        add_group(value, w, packed, first, even, odd);
        add_group(value, w, packed, first + group, even, odd);
      } else {
        for (std::size_t i = 0; i < blocksize_; i += group) add_group(value, w, packed, first + i, even, odd);
      }
    }
    even_ = even;
    odd_ = odd;
  }

  static HWY_INLINE void add_group(const Table16<D>& value, const std::byte* HWY_RESTRICT w,
                                   const std::uint8_t* HWY_RESTRICT packed, std::size_t i, HalfErrors& even,
                                   HalfErrors& odd) {
    const hn::Rebind<std::uint8_t, D> d8;
    for (std::size_t k = 0; k < vector_parts; ++k) {
      const std::size_t at = i + 2 * k * vector_lanes;
      const auto bytes = hn::PromoteTo(DI(), hn::LoadU(d8, packed + at / 2));
      const auto two = load_even_odd<Source>(w, at);
      even.add(k, value[hn::ShiftRight<4>(bytes)], two.v0);
      odd.add(k, value.at_lower_bits(bytes), two.v1);
    }
  }

#else

  template <bool>
  HWY_INLINE void sum(const std::byte* HWY_RESTRICT w, const std::uint8_t* HWY_RESTRICT packed,
                      const float* HWY_RESTRICT absmax, std::size_t blocks) {
    for (std::size_t i = 0; i < blocks * blocksize_; ++i) {
      const float t = tables_.codebook[packed[i / 2] >> (i % 2 == 0 ? 4 : 0) & 15] * absmax[i / blocksize_];
      (i % 2 == 0 ? even_ : odd_).add(i / 2 % 16, hn::Set(D(), t), hn::Set(D(), Source::value(w, i)));
    }
  }

#endif

  const FourBitTables& tables_;
  std::size_t blocksize_;
  HalfErrors even_, odd_;
};

}  // namespace nibble::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
