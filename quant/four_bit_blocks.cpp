// The inner loops of the 4-bit formats, compiled once per CPU target.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <string>

#include "nibble/error.hpp"
#include "quant/four_bit.hpp"
#include "quant/widen.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/four_bit_blocks.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "quant/magnitude-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace nibble::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// A 16-entry table, in one or two registers where vectors are long enough. Indices are in [0, 16).
template <class D> class Table16 {
  using V = hn::Vec<D>;

 public:
  Table16(D d, const float* HWY_RESTRICT table)
      : table_(table), lower_(hn::Load(d, table)), upper_(hn::Load(d, table + hn::Lanes(d) % 16)) {}

  template <class VI> HWY_INLINE V operator[](VI index) const {
    const D d;
#if HWY_TARGET != HWY_SCALAR && !HWY_HAVE_SCALABLE
    if constexpr (hn::MaxLanes(d) == 16) return hn::TableLookupLanes(lower_, hn::IndicesFromVec(d, index));
    if constexpr (hn::MaxLanes(d) == 8) {
      const auto half = hn::IndicesFromVec(d, hn::And(index, hn::Set(hn::RebindToSigned<D>(), 7)));
      const auto is_upper = hn::BitCast(d, hn::ShiftLeft<28>(index));  // bit 3 becomes the sign
      return hn::IfNegativeThenElse(is_upper, hn::TableLookupLanes(upper_, half), hn::TableLookupLanes(lower_, half));
    }
#endif
    return hn::GatherIndex(d, table_, index);
  }

 private:
  const float* table_;
  V lower_, upper_;
};

// The numbers of the codes of one vector (FourBitTables), as int32.
template <bool splits_zero, class D, class V>
HWY_INLINE auto numbers(D d, const Table16<D>& midpoint, V base, V slope, V minus_bend, V weights, V inverse) {
  const hn::RebindToSigned<D> di;
  const V v = hn::Mul(weights, inverse);
  const auto guess = hn::ConvertTo(di, hn::MulAdd(v, hn::MulAdd(hn::Abs(v), minus_bend, slope), base));
  auto number = hn::Sub(guess, hn::VecFromMask(di, hn::RebindMask(di, hn::Gt(v, midpoint[guess]))));  // true is -1
  if constexpr (splits_zero) number = hn::Sub(number, hn::VecFromMask(di, hn::RebindMask(di, hn::Gt(v, hn::Zero(d)))));
  return number;
}

#if HWY_TARGET != HWY_SCALAR && !HWY_HAVE_SCALABLE
// Byte j of lane i of `codes` is the code of weight j * Lanes + i; two neighbours in i become a byte, high nibble
// first, and the bytes are stored in the order of the weights: 2 * Lanes of them.
template <class D> HWY_INLINE void store_packed(D di, hn::Vec<D> codes, std::uint8_t* HWY_RESTRICT packed) {
  const hn::Repartition<std::uint64_t, D> d64;
  const hn::Repartition<std::uint8_t, D> d8;
  const auto pair = hn::BitCast(d64, codes);
  const auto bytes = hn::BitCast(d8, hn::Or(hn::ShiftLeft<4>(pair), hn::ShiftRight<32>(pair)));
  // The lower half of every 64 bits counts: two times four bytes per 128, of which j comes first.
  alignas(16) static constexpr std::uint8_t order[16] = {0, 8, 1, 9, 2, 10, 3, 11, 0, 8, 1, 9, 2, 10, 3, 11};
  const auto ordered = hn::TableLookupBytes(bytes, hn::LoadDup128(d8, order));
  if constexpr (hn::MaxLanes(di) == 4) {
    const hn::Half<decltype(d8)> half;
    hn::StoreU(hn::LowerHalf(half, ordered), half, packed);
  } else if constexpr (hn::MaxLanes(di) == 8) {
    const hn::Full128<std::uint16_t> d16;
    const hn::Half<decltype(d8)> half;
    const auto a = hn::BitCast(d16, hn::LowerHalf(half, ordered));
    const auto b = hn::BitCast(d16, hn::UpperHalf(half, ordered));
    hn::StoreU(hn::BitCast(half, hn::InterleaveLower(d16, a, b)), half, packed);
  } else {
    const hn::Half<decltype(d8)> d256;
    const hn::Half<decltype(d256)> d128;
    const hn::Full128<std::uint16_t> d16;
    const hn::Full128<std::uint32_t> d32;
    const auto low = hn::LowerHalf(d256, ordered), high = hn::UpperHalf(d256, ordered);
    const auto ab = hn::BitCast(d32, hn::InterleaveLower(d16, hn::BitCast(d16, hn::LowerHalf(d128, low)),
                                                         hn::BitCast(d16, hn::UpperHalf(d128, low))));
    const auto cd = hn::BitCast(d32, hn::InterleaveLower(d16, hn::BitCast(d16, hn::LowerHalf(d128, high)),
                                                         hn::BitCast(d16, hn::UpperHalf(d128, high))));
    hn::StoreU(hn::BitCast(d128, hn::InterleaveLower(d32, ab, cd)), d128, packed);
    hn::StoreU(hn::BitCast(d128, hn::InterleaveUpper(d32, ab, cd)), d128, packed + 16);
  }
}
#endif

// Whole blocks whose absmax is finite; the others get absmax only, their bytes stay as they are.
template <bool splits_zero, class D>
HWY_INLINE void encode_blocks_as(D d, const FourBitTables& tables, const float* HWY_RESTRICT w, std::size_t blocks,
                                 std::size_t blocksize, std::uint8_t* HWY_RESTRICT packed, float* HWY_RESTRICT absmax) {
  const hn::RebindToSigned<D> di;
  const std::size_t lanes = hn::Lanes(d);
  const Table16<D> midpoint(d, tables.midpoint.data());
  const auto base = hn::Set(d, tables.base);
  const auto slope = hn::Set(d, tables.slope);
  const auto minus_bend = hn::Set(d, -tables.bend);

  // A batch of blocks at a time: their divisions overlap, and the weights stay in the cache for the second pass.
  constexpr std::size_t batch_weights = 4096;
  HWY_ALIGN float inverse[batch_weights / 32];
  for (std::size_t first = 0; first < blocks;) {
    const std::size_t count = std::min(blocks - first, batch_weights / blocksize);
    for (std::size_t b = 0; b < count; ++b) {
      const std::int32_t largest = largest_magnitude(d, w + b * blocksize, blocksize);
      absmax[first + b] = std::bit_cast<float>(largest);
      inverse[b] = largest < 0x7F800000 ? 1.0f / std::max(absmax[first + b], 1e-38f) : 0.0f;
    }
    for (std::size_t b = 0; b < count; ++b, w += blocksize, packed += blocksize / 2) {
      if (inverse[b] == 0.0f) continue;  // a finite absmax has a larger one
      const auto scale = hn::Set(d, inverse[b]);
      const auto number = [&](std::size_t i) HWY_ATTR {
        return numbers<splits_zero>(d, midpoint, base, slope, minus_bend, hn::LoadU(d, w + i), scale);
      };
#if HWY_TARGET != HWY_SCALAR && !HWY_HAVE_SCALABLE
      const hn::Repartition<std::uint8_t, D> d8;
      const auto code = hn::LoadDup128(d8, tables.code.data());
      for (std::size_t i = 0; i < blocksize; i += 4 * lanes) {
        const auto ab = hn::Or(number(i), hn::ShiftLeft<8>(number(i + lanes)));
        const auto cd = hn::Or(number(i + 2 * lanes), hn::ShiftLeft<8>(number(i + 3 * lanes)));
        auto codes = hn::Or(ab, hn::ShiftLeft<16>(cd));
        if constexpr (splits_zero) codes = hn::BitCast(di, hn::TableLookupBytes(code, hn::BitCast(d8, codes)));
        store_packed(di, codes, packed + i / 2);
      }
#else
      HWY_ALIGN std::int32_t n[batch_weights];
      for (std::size_t i = 0; i < blocksize; i += lanes) hn::Store(number(i), di, n + i);
      for (std::size_t i = 0; i < blocksize; i += 2)
        packed[i / 2] = static_cast<std::uint8_t>(tables.code[static_cast<std::size_t>(n[i])] << 4 |
                                                  tables.code[static_cast<std::size_t>(n[i + 1])]);
#endif
    }
    first += count;
  }
}

void encode_blocks(const FourBitTables& tables, const float* HWY_RESTRICT w, std::size_t blocks, std::size_t blocksize,
                   std::uint8_t* HWY_RESTRICT packed, float* HWY_RESTRICT absmax) {
  const hn::CappedTag<float, 16> d;  // four vectors are packed together
  const hn::CappedTag<float, 8> d_short;
  if (blocksize % (4 * hn::Lanes(d)) == 0) {
    tables.splits_zero ? encode_blocks_as<true>(d, tables, w, blocks, blocksize, packed, absmax)
                       : encode_blocks_as<false>(d, tables, w, blocks, blocksize, packed, absmax);
  } else {
    tables.splits_zero ? encode_blocks_as<true>(d_short, tables, w, blocks, blocksize, packed, absmax)
                       : encode_blocks_as<false>(d_short, tables, w, blocks, blocksize, packed, absmax);
  }
}

// n weights of one block, n even.
void decode_block(const FourBitTables& tables, const std::uint8_t* HWY_RESTRICT packed, float absmax, std::size_t n,
                  float* HWY_RESTRICT w) {
  const hn::CappedTag<float, 16> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<std::uint8_t, decltype(d)> d8;
  const std::size_t lanes = hn::Lanes(d);
  const Table16<decltype(d)> value(d, tables.codebook.data());
  const auto scale = hn::Set(d, absmax);
  std::size_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    const auto byte = hn::PromoteTo(di, hn::LoadU(d8, packed + i / 2));
    const auto even = hn::Mul(value[hn::ShiftRight<4>(byte)], scale);
    const auto odd = hn::Mul(value[hn::And(byte, hn::Set(di, 15))], scale);
    hn::StoreInterleaved2(even, odd, d, w + i);
  }
  for (; i < n; i += 2) {
    w[i] = tables.codebook[packed[i / 2] >> 4] * absmax;
    w[i + 1] = tables.codebook[packed[i / 2] & 15] * absmax;
  }
}

}  // namespace nibble::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble {
namespace {

HWY_EXPORT(encode_blocks);
HWY_EXPORT(decode_block);

void check_sizes(std::size_t weights, std::size_t blocksize, std::size_t packed, std::size_t absmax) {
  if (!std::has_single_bit(blocksize) || blocksize < 32 || blocksize > 4096)
    throw Error(Errc::usage, "blocksize is " + std::to_string(blocksize) + ", not one of 32, 64, ..., 4096");
  if (packed != weights / 2 + weights % 2 || absmax != weights / blocksize + (weights % blocksize != 0))
    throw Error(Errc::usage, std::to_string(weights) + " weights in blocks of " + std::to_string(blocksize) +
                                 " do not fit " + std::to_string(packed) + " packed bytes and " +
                                 std::to_string(absmax) + " absmax values");
}

// The block with NaN as 0 and infinities as its largest finite magnitude, padded with zeros.
std::array<float, tile_weights> repaired(std::span<const float> block) {
  std::array<float, tile_weights> out{};
  float largest = 0;
  for (const float weight : block)
    if (std::isfinite(weight)) largest = std::max(largest, std::abs(weight));
  for (std::size_t i = 0; i < block.size(); ++i)
    if (!std::isnan(block[i])) out[i] = std::clamp(block[i], -largest, largest);
  return out;
}

}  // namespace

std::size_t encode_four_bit(const FourBitTables& tables, std::span<const float> weights, std::size_t blocksize,
                            std::span<std::uint8_t> packed, std::span<float> absmax) {
  check_sizes(weights.size(), blocksize, packed.size(), absmax.size());
  const auto encode_blocks_here = HWY_DYNAMIC_DISPATCH(encode_blocks);
  const std::size_t whole = weights.size() / blocksize;
  encode_blocks_here(tables, weights.data(), whole, blocksize, packed.data(), absmax.data());

  std::size_t nonfinite = 0;
  for (std::size_t b = 0; b < absmax.size(); ++b) {
    if (b < whole && std::isfinite(absmax[b])) continue;
    const auto block = weights.subspan(b * blocksize, std::min(blocksize, weights.size() - b * blocksize));
    const bool finite = std::all_of(block.begin(), block.end(), [](float weight) { return std::isfinite(weight); });
    nonfinite += !finite;
    std::array<std::uint8_t, tile_weights / 2> bytes;
    encode_blocks_here(tables, repaired(block).data(), 1, blocksize, bytes.data(), &absmax[b]);
    std::copy_n(bytes.begin(), block.size() / 2 + block.size() % 2,
                packed.begin() + static_cast<std::ptrdiff_t>(b * blocksize / 2));
  }
  return nonfinite;
}

void decode_four_bit(const FourBitTables& tables, std::span<const std::uint8_t> packed, std::span<const float> absmax,
                     std::size_t blocksize, std::span<float> weights) {
  check_sizes(weights.size(), blocksize, packed.size(), absmax.size());
  const auto decode_block_here = HWY_DYNAMIC_DISPATCH(decode_block);
  const std::size_t even = weights.size() - weights.size() % 2;
  for (std::size_t i = 0; i < even; i += blocksize)
    decode_block_here(tables, packed.data() + i / 2, absmax[i / blocksize], std::min(blocksize, even - i),
                      weights.data() + i);
  if (even < weights.size()) weights[even] = tables.codebook[packed[even / 2] >> 4] * absmax[even / blocksize];
}

}  // namespace nibble
#endif
