// Encoding fp32 and fp16 to a 4-bit format by FourBitTables::bucket, for AVX-512, where one instruction looks up words
// among 32. In L2 on one thread: 30 GB/s of fp32, where the method for all targets reaches 19. Included once per
// Highway target, hence the guard that toggles.
#if defined(NIBBLE_QUANT_FOUR_BIT_BUCKETS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef NIBBLE_QUANT_FOUR_BIT_BUCKETS_INL
#undef NIBBLE_QUANT_FOUR_BIT_BUCKETS_INL
#else
#define NIBBLE_QUANT_FOUR_BIT_BUCKETS_INL
#endif

#include <hwy/highway.h>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "quant/codecs/four_bit/four_bit.hpp"
#include "quant/simd/nibbles-inl.hpp"
#include "quant/simd/prefetch.hpp"
#include "quant/simd/source-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace nibble::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86

// The codes of a batch of n weights, at most as many as a block may have, given the inverse and the scale of each
// absmax. Prefetches one batch ahead.
template <class Source>
HWY_INLINE void encode_by_buckets(const FourBitTables& tables, const std::byte* HWY_RESTRICT w, std::size_t n,
                                  const float* HWY_RESTRICT inverse, const float* HWY_RESTRICT scale, int block_bits,
                                  std::uint8_t* HWY_RESTRICT packed) {
  constexpr std::size_t word = 32;
  const hn::Full512<float> d;
  const hn::Full512<std::int16_t> d16;
  const hn::Full512<std::uint32_t> d32;
  HWY_ALIGN std::uint32_t in_doubt[FourBitTables::max_blocksize / word] = {};  // a bit for each weight

  const auto buckets = hn::Load(d16, tables.bucket.data());
  const auto rounding = hn::Set(d, FourBitTables::rounding);
  for (std::size_t i = 0; i < n; i += word) {
    const std::byte* const ahead = w + (n + i) * Source::size;
    for (std::size_t line = 0; line < word * Source::size; line += 64) prefetch_to_l2(ahead + line);
    const auto factor = hn::Set(d, scale[i >> block_bits]);
    const auto a = hn::BitCast(d16, hn::MulAdd(Source::load(d, w, i), factor, rounding));
    const auto b = hn::BitCast(d16, hn::MulAdd(Source::load(d, w, i + 16), factor, rounding));
    const auto x = hn::ConcatEven(d16, b, a);
    const auto bucket = hn::ShiftRight<FourBitTables::bucket_bits>(x);
    const hn::Vec<decltype(d16)> sum{_mm512_add_epi16(x.raw, _mm512_permutexvar_epi16(bucket.raw, buckets.raw))};
    in_doubt[i / word] = _mm512_testn_epi16_mask(sum.raw, _mm512_set1_epi16(0x0FFF));
    store_upper_nibbles(sum, packed + i / 2);
  }

  const auto settle = [&](std::size_t i) HWY_ATTR {
    const auto v = hn::Set(d, Source::value(w, i) * inverse[i >> block_bits]);
    const std::size_t number = hn::CountTrue(d, hn::Gt(v, hn::Load(d, tables.midpoint.data())));
    const int shift = i % 2 == 0 ? 4 : 0;
    packed[i / 2] = static_cast<std::uint8_t>((packed[i / 2] & 0xF0 >> shift) | static_cast<int>(number) << shift);
  };
  for (std::size_t i = 0; i < n; i += 16 * word) {
    const auto any = hn::Ne(hn::Load(d32, in_doubt + i / word), hn::Zero(d32));
    for (unsigned words = any.raw; words != 0; words &= words - 1) {
      const std::size_t j = i + word * static_cast<std::size_t>(std::countr_zero(words));
      for (std::uint32_t left = in_doubt[j / word]; left != 0; left &= left - 1)
        settle(j + static_cast<std::size_t>(std::countr_zero(left)));
    }
  }
}

#endif

}  // namespace nibble::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
