// Encoding to the 4-bit formats, compiled once per CPU target.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "quant/codecs/four_bit/four_bit.hpp"
#include "quant/simd/widen.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/codecs/four_bit/four_bit_encode.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "quant/codecs/four_bit/four_bit_encode-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace nibble::HWY_NAMESPACE {

#define NIBBLE_ENCODE_BLOCKS_OF(name, Source)                                                                          \
  void encode_blocks_##name(const FourBitTables& tables, const std::byte* HWY_RESTRICT w, std::size_t blocks,          \
                            std::size_t blocksize, std::uint8_t* HWY_RESTRICT packed, float* HWY_RESTRICT absmax) {    \
    encode_whole_blocks<Source>(tables, w, blocks, blocksize, packed, absmax, SeeNothing());                           \
  }                                                                                                                    \
  void encode_for_##name(const FourBitTables& tables, const std::byte* HWY_RESTRICT w, std::size_t blocks,             \
                         std::size_t blocksize, const float* HWY_RESTRICT absmax, std::uint8_t* HWY_RESTRICT packed) { \
    tables.splits_zero ? encode_blocks_for<Source, true>(tables, w, blocks, blocksize, absmax, packed)                 \
                       : encode_blocks_for<Source, false>(tables, w, blocks, blocksize, absmax, packed);               \
  }
NIBBLE_ENCODE_BLOCKS_OF(f32, F32)
NIBBLE_ENCODE_BLOCKS_OF(bf16, Bf16)
NIBBLE_ENCODE_BLOCKS_OF(f16, F16)
#undef NIBBLE_ENCODE_BLOCKS_OF

}  // namespace nibble::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble {
namespace {

HWY_EXPORT(encode_blocks_f32);
HWY_EXPORT(encode_blocks_bf16);
HWY_EXPORT(encode_blocks_f16);
HWY_EXPORT(encode_for_f32);
HWY_EXPORT(encode_for_bf16);
HWY_EXPORT(encode_for_f16);

auto encode_blocks_of(DType source) {
  return loop_of(source, HWY_DYNAMIC_DISPATCH(encode_blocks_f32), HWY_DYNAMIC_DISPATCH(encode_blocks_bf16),
                 HWY_DYNAMIC_DISPATCH(encode_blocks_f16));
}

auto encode_for_of(DType source) {
  return loop_of(source, HWY_DYNAMIC_DISPATCH(encode_for_f32), HWY_DYNAMIC_DISPATCH(encode_for_bf16),
                 HWY_DYNAMIC_DISPATCH(encode_for_f16));
}

}  // namespace

std::array<float, FourBitTables::max_blocksize> repaired(std::span<const float> block) {
  std::array<float, FourBitTables::max_blocksize> out{};
  float largest = 0;
  for (const float weight : block)
    if (std::isfinite(weight)) largest = std::max(largest, std::abs(weight));
  for (std::size_t i = 0; i < block.size(); ++i)
    if (!std::isnan(block[i])) out[i] = std::clamp(block[i], -largest, largest);
  return out;
}

std::size_t repair_blocks(const FourBitTables& tables, DType source, std::span<const std::byte> weights,
                          std::size_t blocksize, std::span<std::uint8_t> packed, std::span<float> absmax) {
  const std::size_t size = traits(source).bits / 8, n = weights.size() / size;
  const std::size_t whole = n >> std::countr_zero(blocksize);
  std::size_t nonfinite = 0;
  const auto repair = [&](std::size_t b) {
    const std::size_t first = b * blocksize, count = std::min(blocksize, n - first);
    std::array<float, tile_weights> tile;
    const auto block = widen(source, weights.subspan(first * size, count * size), tile);
    nonfinite += !std::all_of(block.begin(), block.end(), [](float weight) { return std::isfinite(weight); });
    const auto finite = repaired(block);
    std::array<std::uint8_t, tile_weights / 2> bytes;
    encode_blocks_of(DType::f32)(tables, std::as_bytes(std::span(finite)).data(), 1, blocksize, bytes.data(),
                                 &absmax[b]);
    std::copy_n(bytes.begin(), count / 2 + count % 2, packed.begin() + static_cast<std::ptrdiff_t>(first / 2));
  };
  const float* const largest = absmax.data();  // a span that checks every index is not vectorized
  std::size_t infinite = 0;
  for (std::size_t b = 0; b < whole; ++b) infinite += !(largest[b] < std::numeric_limits<float>::infinity());
  if (infinite > 0)
    for (std::size_t b = 0; b < whole; ++b)
      if (!std::isfinite(absmax[b])) repair(b);
  if (whole < absmax.size()) repair(whole);
  return nonfinite;
}

std::size_t encode_four_bit(const FourBitTables& tables, DType source, std::span<const std::byte> weights,
                            std::size_t blocksize, std::span<std::uint8_t> packed, std::span<float> absmax) {
  const std::size_t n = weights.size() / (traits(source).bits / 8);
  check_four_bit_sizes(n, blocksize, packed.size(), absmax.size());
  encode_blocks_of(source)(tables, weights.data(), n / blocksize, blocksize, packed.data(), absmax.data());
  return repair_blocks(tables, source, weights, blocksize, packed, absmax);
}

std::size_t encode_four_bit(const FourBitTables& tables, std::span<const float> weights, std::size_t blocksize,
                            std::span<std::uint8_t> packed, std::span<float> absmax) {
  return encode_four_bit(tables, DType::f32, std::as_bytes(weights), blocksize, packed, absmax);
}

void encode_four_bit_for(const FourBitTables& tables, DType source, std::span<const std::byte> weights,
                         std::size_t blocksize, std::span<const float> absmax, std::span<std::uint8_t> packed) {
  const std::size_t size = traits(source).bits / 8, n = weights.size() / size;
  check_four_bit_sizes(n, blocksize, packed.size(), absmax.size());
  const std::size_t whole = source == DType::f64 ? 0 : n / blocksize;
  encode_for_of(source)(tables, weights.data(), whole, blocksize, absmax.data(), packed.data());
  // The last block if it is short, and those of F64.
  for (std::size_t b = whole; b < absmax.size(); ++b) {
    const std::size_t first = b * blocksize, count = std::min(blocksize, n - first);
    std::array<float, FourBitTables::max_blocksize> block{};
    const auto wide = widen(source, weights.subspan(first * size, count * size), block);
    if (wide.data() != block.data()) std::ranges::copy(wide, block.begin());
    std::array<std::uint8_t, FourBitTables::max_blocksize / 2> bytes;
    encode_for_of(DType::f32)(tables, std::as_bytes(std::span(block)).data(), 1, blocksize, &absmax[b], bytes.data());
    std::copy_n(bytes.begin(), ceil_div(count, 2), packed.begin() + static_cast<std::ptrdiff_t>(first / 2));
  }
}

}  // namespace nibble
#endif
