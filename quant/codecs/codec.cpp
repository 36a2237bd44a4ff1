// What codecs do unless they know better.

#include "nibble/codec.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "nibble/bf16.hpp"
#include "nibble/error.hpp"
#include "nibble/fp16.hpp"
#include "quant/simd/widen.hpp"

namespace nibble {

void Encoder::scan(std::uint64_t, std::span<const std::byte>) {}

// Through fp32, tile by tile, which stay in the cache.
void Decoder::decode(std::uint64_t first, std::span<const std::byte> in, DType to, std::span<std::byte> out) const {
  if (to != DType::f32 && to != DType::bf16 && to != DType::f16)
    throw Error(Errc::usage, "weights are decoded to F32, BF16 or F16, not to " + std::string(traits(to).name));
  const std::size_t size = traits(to).bits / 8, n = out.size() / size;
  if (n == 0) return;
  const std::size_t bits = 8 * in.size() / n;  // of a weight; an odd nibble at the end counts only where n is one
  alignas(64) std::array<float, tile_weights> weights;
  std::array<std::uint16_t, tile_weights> halves;
  for (std::size_t i = 0; i < n; i += tile_weights) {
    const std::size_t count = std::min(tile_weights, n - i);
    const std::size_t begin = i / 8 * bits, end = i + count == n ? in.size() : (i + count) / 8 * bits;
    const std::span<float> tile = std::span(weights).first(count);
    const std::span<std::uint16_t> narrow = std::span(halves).first(count);
    decode(first + i, in.subspan(begin, end - begin), tile);
    if (to == DType::bf16) (void)bf16::encode(tile, narrow);
    if (to == DType::f16) (void)fp16::encode(tile, narrow);
    const void* const from = to == DType::f32 ? static_cast<const void*>(tile.data()) : narrow.data();
    std::memcpy(out.data() + i * size, from, count * size);
  }
}

}  // namespace nibble
