// Encoding bf16 to a 4-bit format by Bf16Steps. In L2 on one thread: 20 GB/s with AVX-512 and 14 with AVX2, where the
// methods for fp32 reach 14 and 10. Included once per Highway target, hence the guard that toggles.
#if defined(NIBBLE_QUANT_FOUR_BIT_BF16_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef NIBBLE_QUANT_FOUR_BIT_BF16_INL
#undef NIBBLE_QUANT_FOUR_BIT_BF16_INL
#else
#define NIBBLE_QUANT_FOUR_BIT_BF16_INL
#endif

#include <hwy/highway.h>
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "nibble/bf16.hpp"
#include "quant/codecs/four_bit/four_bit_bf16.hpp"
#include "quant/simd/magnitude-inl.hpp"
#include "quant/simd/nibbles-inl.hpp"
#include "quant/simd/prefetch.hpp"

HWY_BEFORE_NAMESPACE();
namespace nibble::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR

// The codes of a block of n weights, a multiple of 32. Prefetches the n weights at `ahead`, which are encoded soon.
HWY_INLINE void encode_by_steps(const Bf16Steps& table, const std::uint16_t* HWY_RESTRICT w, std::size_t n,
                                std::uint16_t absmax, const std::uint16_t* HWY_RESTRICT ahead,
                                std::uint8_t* HWY_RESTRICT packed) {
  const auto origin_bits = static_cast<std::uint16_t>(std::max((absmax & 0x7F80) - Bf16Steps::near, 0));
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  const hn::Full512<std::uint16_t> d;
  const std::uint16_t* const words = table.words[absmax & 127u].data();
  const auto lower = hn::Load(d, words), upper = hn::Load(d, words + 32), origin = hn::Set(d, origin_bits);
  for (std::size_t i = 0; i < n; i += 32) {
    prefetch_to_l2(ahead + i);
    const auto weights = hn::LoadU(d, w + i);
    const auto m = hn::SaturatedSub(hn::And(weights, hn::Set(d, 0x7FFF)), origin);
    const auto s = _mm512_mask_sub_epi16(m.raw, _mm512_movepi16_mask(weights.raw), _mm512_setzero_si512(), m.raw);
    const auto word = _mm512_permutex2var_epi16(lower.raw, _mm512_srli_epi16(s, 5), upper.raw);
    store_upper_nibbles(hn::Vec<decltype(d)>{_mm512_add_epi16(s, word)}, packed + i / 2);
  }
#else
  const hn::CappedTag<std::uint8_t, 32> d8;
  const hn::RebindToSigned<decltype(d8)> di8;
  const hn::Repartition<std::uint16_t, decltype(d8)> d16;
  const hn::RebindToSigned<decltype(d16)> di16;
  constexpr std::size_t lanes = hn::MaxLanes(d8);
  const Bf16Steps::Bytes& table8 = table.bytes[absmax & 127u];
  const auto positive = hn::LoadDup128(d8, table8.positive.data());
  const auto negative = hn::LoadDup128(d8, table8.negative.data());
  const auto left = hn::BitCast(di8, hn::LoadDup128(d8, table8.left.data()));
  const auto coarse = hn::LoadDup128(d8, Bf16Steps::coarse.data());
  const auto origin = hn::Set(d16, origin_bits), octave = hn::Set(d16, 127);
  const auto pack = [&](auto a, auto b) HWY_ATTR { return pack_bytes(hn::BitCast(di16, a), hn::BitCast(di16, b)); };
  for (std::size_t i = 0; i < n; i += lanes) {
    prefetch_to_l2(ahead + i);
    const auto a = hn::LoadU(d16, w + i), b = hn::LoadU(d16, w + i + lanes / 2);
    const auto ma = hn::SaturatedSub(hn::And(a, hn::Set(d16, 0x7FFF)), origin);
    const auto mb = hn::SaturatedSub(hn::And(b, hn::Set(d16, 0x7FFF)), origin);
    const auto quarter = pack(hn::ShiftRight<5>(ma), hn::ShiftRight<5>(mb));
    const auto behind = hn::BitCast(di8, pack(hn::AndNot(ma, octave), hn::AndNot(mb, octave)));  // 127 - m % 128
    // Words are saturated, negative ones to 0. So is 0, but its number is the same from either side.
    const auto is_negative = hn::Eq(pack(a, b), hn::Zero(d8));
    // Not every target defines a lookup beyond 15; from there on the other term is the larger anyway.
    const auto bucket = hn::Max(hn::SaturatedSub(quarter, hn::Set(d8, 8)),
                                hn::TableLookupBytes(coarse, hn::Min(quarter, hn::Set(d8, 15))));
    const auto next =
        hn::IfThenElse(is_negative, hn::TableLookupBytes(negative, bucket), hn::TableLookupBytes(positive, bucket));
    const auto is_beyond = hn::Gt(hn::TableLookupBytesOr0(left, hn::BitCast(di8, next)), behind);
    // The number is one more than the midpoint: of positive weights beyond it, of negative ones before. True is -1.
    const auto minus_one = hn::Xor(hn::BitCast(d8, hn::VecFromMask(di8, is_beyond)), hn::VecFromMask(d8, is_negative));
    store_nibbles(hn::And(hn::Sub(next, minus_one), hn::Set(d8, 15)), packed + i / 2);
  }
#endif
}

// Whole blocks; encode_tiny(w, blocks, packed, absmax) does those whose absmax is too small for the table, and
// compare(w, blocks, packed, absmax) sees all as soon as they are encoded. Where absmax is not finite, the codes mean
// nothing.
template <class EncodeTiny, class See>
HWY_INLINE void encode_blocks_by_steps(const Bf16Steps& table, const std::byte* HWY_RESTRICT w, std::size_t blocks,
                                       std::size_t blocksize, std::uint8_t* HWY_RESTRICT packed,
                                       float* HWY_RESTRICT absmax, const EncodeTiny& encode_tiny, const See& see) {
  // Weights per batch: the table needs a part of L1, too, and the codes take so little time that fetching is the
  // bottleneck. 4096 of them: 10.6 GB/s from memory instead of 12.2 (docs/tried-and-lost.md).
  constexpr std::size_t batch = 1024;
  std::uint16_t bits[batch / 32];
  while (blocks > 0) {
    const std::size_t count = std::min(blocks, std::max<std::size_t>(1, batch / blocksize)), n = count * blocksize;
    const auto* const weights = reinterpret_cast<const std::uint16_t*>(w);
    bool tiny = false;
    for (std::size_t b = 0; b < count; ++b) {
      const hn::CappedTag<std::int16_t, 32> d;
      bits[b] = static_cast<std::uint16_t>(largest_magnitude(d, weights + b * blocksize, blocksize));
      absmax[b] = bf16::to_float(bits[b]);
      tiny |= bits[b] > 0 && bits[b] < Bf16Steps::smallest;
    }
    if (tiny)
      encode_tiny(w, count, packed, absmax);
    else
      for (std::size_t b = 0; b < count; ++b)
        encode_by_steps(table, weights + b * blocksize, blocksize, bits[b], weights + b * blocksize + n,
                        packed + b * blocksize / 2);
    see(w, count, packed, absmax);
    w += n * sizeof(std::uint16_t);
    packed += n / 2;
    absmax += count;
    blocks -= count;
  }
}

#endif

}  // namespace nibble::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
