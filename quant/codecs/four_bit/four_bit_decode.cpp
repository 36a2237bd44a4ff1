// Decoding from the 4-bit formats, compiled once per CPU target.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "quant/codecs/four_bit/four_bit.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/codecs/four_bit/four_bit_decode.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "quant/codecs/casts/cast-inl.hpp"
#include "quant/simd/table16-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace nibble::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// n weights; the last block may be short.
void decode_blocks(const FourBitTables& tables, const std::uint8_t* HWY_RESTRICT packed,
                   const float* HWY_RESTRICT absmax, std::size_t blocksize, std::size_t n, float* HWY_RESTRICT w) {
  const hn::CappedTag<float, 16> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<std::uint8_t, decltype(d)> d8;
  const std::size_t lanes = hn::Lanes(d);
  const Table16<decltype(d)> value(d, tables.codebook.data());
  for (std::size_t first = 0; first < n; first += blocksize) {
    const auto scale = hn::Set(d, *absmax);
    const std::size_t end = std::min(first + blocksize, n);
    std::size_t i = first;
    for (; i + 2 * lanes <= end; i += 2 * lanes) {
      const auto byte = hn::PromoteTo(di, hn::LoadU(d8, packed + i / 2));
      const auto even = hn::Mul(value[hn::ShiftRight<4>(byte)], scale);
      const auto odd = hn::Mul(value[hn::And(byte, hn::Set(di, 15))], scale);
      hn::StoreInterleaved2(even, odd, d, w + i);
    }
    for (; i < end; ++i) w[i] = tables.codebook[packed[i / 2] >> (i % 2 == 0 ? 4 : 0) & 15] * *absmax;
    ++absmax;
  }
}

// The values of the 16 codes of a block, rounded to 16 bits: first the lower bytes, then the upper ones.
struct Values16 {
  alignas(16) std::uint8_t lower[16];
  alignas(16) std::uint8_t upper[16];
};

template <bool to_bf16> HWY_INLINE void make_values(const FourBitTables& tables, float absmax, Values16& values) {
  const hn::CappedTag<float, 16> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::RebindToUnsigned<decltype(d)> du;
  const hn::Rebind<std::uint8_t, decltype(d)> d8;
  for (std::size_t i = 0; i < 16; i += hn::Lanes(d)) {
    const auto product = hn::BitCast(di, hn::Mul(hn::Load(d, &tables.codebook[i]), hn::Set(d, absmax)));
    const auto magnitude = hn::And(product, hn::Set(di, 0x7FFFFFFF));
    const auto rounded = to_bf16 ? bf16_bits(di, magnitude) : fp16_bits(di, magnitude, 0x7C00);
    const auto sign = hn::And(hn::ShiftRight<16>(product), hn::Set(di, 0x8000));
    const auto bits = hn::BitCast(du, hn::Or(rounded, sign));
    hn::StoreU(hn::U8FromU32(hn::And(bits, hn::Set(du, 0xFF))), d8, values.lower + i);
    hn::StoreU(hn::U8FromU32(hn::ShiftRight<8>(bits)), d8, values.upper + i);
  }
}

// Codes as the values they stand for. Whole vectors look up 32 or 64 codes at once.
template <std::size_t vector_bytes>
HWY_INLINE void look_up(const std::uint8_t* HWY_RESTRICT packed, const Values16& values, std::size_t n,
                        std::uint16_t* HWY_RESTRICT w) {
  std::size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::CappedTag<std::uint8_t, vector_bytes> d8;
  const hn::Repartition<std::uint16_t, decltype(d8)> d16;
  const auto lower = hn::LoadDup128(d8, values.lower), upper = hn::LoadDup128(d8, values.upper);
  const auto low_nibbles = hn::Set(d8, 15);
  for (; i + 2 * hn::Lanes(d8) <= n; i += 2 * hn::Lanes(d8)) {
    const auto bytes = hn::LoadU(d8, packed + i / 2);
    const auto even = hn::And(hn::BitCast(d8, hn::ShiftRight<4>(hn::BitCast(d16, bytes))), low_nibbles);
    const auto odd = hn::And(bytes, low_nibbles);
    const auto even_lower = hn::TableLookupBytes(lower, even), even_upper = hn::TableLookupBytes(upper, even);
    const auto odd_lower = hn::TableLookupBytes(lower, odd), odd_upper = hn::TableLookupBytes(upper, odd);
    const auto even0 = hn::BitCast(d16, hn::InterleaveLower(d8, even_lower, even_upper));
    const auto even1 = hn::BitCast(d16, hn::InterleaveUpper(d8, even_lower, even_upper));
    const auto odd0 = hn::BitCast(d16, hn::InterleaveLower(d8, odd_lower, odd_upper));
    const auto odd1 = hn::BitCast(d16, hn::InterleaveUpper(d8, odd_lower, odd_upper));
    // The next eight weights of every block of 128 bits, which has 32.
    const auto w0 = hn::InterleaveLower(d16, even0, odd0), w8 = hn::InterleaveUpper(d16, even0, odd0);
    const auto w16 = hn::InterleaveLower(d16, even1, odd1), w24 = hn::InterleaveUpper(d16, even1, odd1);
    if constexpr (hn::MaxLanes(d8) == 16) {
      hn::StoreU(w0, d16, w + i);
      hn::StoreU(w8, d16, w + i + 8);
      hn::StoreU(w16, d16, w + i + 16);
      hn::StoreU(w24, d16, w + i + 24);
    } else {
      hn::StoreU(hn::ConcatLowerLower(d16, w8, w0), d16, w + i);
      hn::StoreU(hn::ConcatLowerLower(d16, w24, w16), d16, w + i + 16);
      hn::StoreU(hn::ConcatUpperUpper(d16, w8, w0), d16, w + i + 32);
      hn::StoreU(hn::ConcatUpperUpper(d16, w24, w16), d16, w + i + 48);
    }
  }
#endif
  for (; i < n; ++i) {
    const std::size_t code = packed[i / 2] >> (i % 2 == 0 ? 4 : 0) & 15;
    w[i] = static_cast<std::uint16_t>(values.lower[code] | values.upper[code] << 8);
  }
}

// A block has fewer codes than weights: 16 products are rounded, and the weights only look them up.
template <bool to_bf16>
HWY_INLINE void decode_blocks_16(const FourBitTables& tables, const std::uint8_t* HWY_RESTRICT packed,
                                 const float* HWY_RESTRICT absmax, std::size_t blocksize, std::size_t n,
                                 std::uint16_t* HWY_RESTRICT w) {
  Values16 values[32];  // made for many blocks before they are used, because a load right after smaller stores has to
                        // wait for them
  for (std::size_t first = 0; first < n;) {
    const std::size_t blocks = std::min<std::size_t>(32, (n - first + blocksize - 1) / blocksize);
    for (std::size_t b = 0; b < blocks; ++b) make_values<to_bf16>(tables, absmax[b], values[b]);
    for (std::size_t b = 0; b < blocks; ++b, first += blocksize) {
      const std::size_t count = std::min(blocksize, n - first);
      if (blocksize < 64)
        look_up<16>(packed + first / 2, values[b], count, w + first);
      else
        look_up<32>(packed + first / 2, values[b], count, w + first);
    }
    absmax += blocks;
  }
}

void decode_blocks_bf16(const FourBitTables& tables, const std::uint8_t* HWY_RESTRICT packed,
                        const float* HWY_RESTRICT absmax, std::size_t blocksize, std::size_t n,
                        std::uint16_t* HWY_RESTRICT w) {
  decode_blocks_16<true>(tables, packed, absmax, blocksize, n, w);
}
void decode_blocks_f16(const FourBitTables& tables, const std::uint8_t* HWY_RESTRICT packed,
                       const float* HWY_RESTRICT absmax, std::size_t blocksize, std::size_t n,
                       std::uint16_t* HWY_RESTRICT w) {
  decode_blocks_16<false>(tables, packed, absmax, blocksize, n, w);
}

}  // namespace nibble::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble {

HWY_EXPORT(decode_blocks);
HWY_EXPORT(decode_blocks_bf16);
HWY_EXPORT(decode_blocks_f16);

void decode_four_bit(const FourBitTables& tables, std::span<const std::uint8_t> packed, std::span<const float> absmax,
                     std::size_t blocksize, std::span<float> weights) {
  check_four_bit_sizes(weights.size(), blocksize, packed.size(), absmax.size());
  HWY_DYNAMIC_DISPATCH(decode_blocks)
  (tables, packed.data(), absmax.data(), blocksize, weights.size(), weights.data());
}

void decode_four_bit(const FourBitTables& tables, std::span<const std::uint8_t> packed, std::span<const float> absmax,
                     std::size_t blocksize, DType to, std::span<std::uint16_t> weights) {
  check_four_bit_sizes(weights.size(), blocksize, packed.size(), absmax.size());
  const auto decode_here =
      to == DType::bf16 ? HWY_DYNAMIC_DISPATCH(decode_blocks_bf16) : HWY_DYNAMIC_DISPATCH(decode_blocks_f16);
  decode_here(tables, packed.data(), absmax.data(), blocksize, weights.size(), weights.data());
}

}  // namespace nibble
#endif
