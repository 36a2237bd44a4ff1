// Encoding bf16 to a 4-bit format by Bf16Steps, for AVX-512, where one instruction looks words up among 64. In L2 on
// one thread: 20.2 GB/s, where the way of all targets has 9.1. Included once per Highway target, hence the guard that
// toggles.
#if defined(NIBBLE_QUANT_FOUR_BIT_BF16_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef NIBBLE_QUANT_FOUR_BIT_BF16_INL
#undef NIBBLE_QUANT_FOUR_BIT_BF16_INL
#else
#define NIBBLE_QUANT_FOUR_BIT_BF16_INL
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "nibble/bf16.hpp"
#include "quant/four_bit_bf16.hpp"
#include "quant/nibbles-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace nibble::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86

// The bits of the largest magnitude of a block; n is a multiple of 32.
HWY_INLINE std::uint16_t largest_bits(const std::uint16_t* HWY_RESTRICT w, std::size_t n) {
  const hn::Full512<std::uint16_t> d;
  const hn::Full256<std::uint16_t> d256;
  const hn::Full128<std::uint16_t> d128;
  const auto magnitude = hn::Set(d, 0x7FFF);
  auto largest = hn::And(hn::LoadU(d, w), magnitude);
  for (std::size_t i = 32; i < n; i += 32) largest = hn::Max(largest, hn::And(hn::LoadU(d, w + i), magnitude));
  const auto half = hn::Max(hn::LowerHalf(d256, largest), hn::UpperHalf(d256, largest));
  const auto quarter = hn::Max(hn::LowerHalf(d128, half), hn::UpperHalf(d128, half));
  const auto all = hn::Set(d128, 0xFFFF);
  return static_cast<std::uint16_t>(~_mm_cvtsi128_si32(_mm_minpos_epu16(hn::Xor(quarter, all).raw)));
}

// The codes of a block of n weights; as many at `ahead` are fetched meanwhile.
HWY_INLINE void encode_by_steps(const Bf16Steps& table, const std::uint16_t* HWY_RESTRICT w, std::size_t n,
                                std::uint16_t absmax, const std::uint16_t* HWY_RESTRICT ahead,
                                std::uint8_t* HWY_RESTRICT packed) {
  const hn::Full512<std::uint16_t> d;
  const std::uint16_t* const steps = table.steps[absmax & 127u].data();
  const auto lower = hn::Load(d, steps), upper = hn::Load(d, steps + 32);
  const auto origin = hn::Set(d, static_cast<std::uint16_t>(std::max((absmax & 0x7F80) - Bf16Steps::near, 0)));
  for (std::size_t i = 0; i < n; i += 32) {
    hwy::Prefetch(ahead + i);
    const auto weights = hn::LoadU(d, w + i);
    const auto magnitude = hn::SaturatedSub(hn::And(weights, hn::Set(d, 0x7FFF)), origin);
    const auto s =
        _mm512_mask_sub_epi16(magnitude.raw, _mm512_movepi16_mask(weights.raw), _mm512_setzero_si512(), magnitude.raw);
    const auto step = _mm512_permutex2var_epi16(lower.raw, _mm512_srli_epi16(s, Bf16Steps::bucket_bits), upper.raw);
    const hn::Vec<decltype(d)> sums{_mm512_add_epi16(s, step)};
    store_upper_nibbles(sums, packed + i / 2);
  }
}

// Whole blocks; encode_tiny(w, blocks, packed, absmax) does those whose absmax is too small for the table. Where absmax
// is not finite, the codes mean nothing.
template <class EncodeTiny>
HWY_INLINE void encode_blocks_by_steps(const Bf16Steps& table, const std::byte* HWY_RESTRICT w, std::size_t blocks,
                                       std::size_t blocksize, std::uint8_t* HWY_RESTRICT packed,
                                       float* HWY_RESTRICT absmax, const EncodeTiny& encode_tiny) {
  // Weights in work: the table needs a part of L1, too, and the codes take so little time that fetching sets the pace.
  // 4096 of them: 10.6 GB/s from memory instead of 12.2 (docs/performance.md).
  constexpr std::size_t batch = 1024;
  std::uint16_t bits[batch / 32];
  while (blocks > 0) {
    const std::size_t count = std::min(blocks, std::max<std::size_t>(1, batch / blocksize)), n = count * blocksize;
    const auto* const weights = reinterpret_cast<const std::uint16_t*>(w);
    bool tiny = false;
    for (std::size_t b = 0; b < count; ++b) {
      bits[b] = largest_bits(weights + b * blocksize, blocksize);
      absmax[b] = bf16::to_float(bits[b]);
      tiny |= bits[b] > 0 && bits[b] < Bf16Steps::smallest;
    }
    if (tiny)
      encode_tiny(w, count, packed, absmax);
    else
      for (std::size_t b = 0; b < count; ++b)
        encode_by_steps(table, weights + b * blocksize, blocksize, bits[b], weights + b * blocksize + n,
                        packed + b * blocksize / 2);
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
