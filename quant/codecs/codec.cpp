// What codecs share.

#include "nibble/codec.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "nibble/bf16.hpp"
#include "nibble/error.hpp"
#include "nibble/fp16.hpp"
#include "quant/codecs/codecs.hpp"
#include "quant/simd/widen.hpp"

namespace nibble {
namespace {

class PlainDecoder final : public Decoder {
 public:
  explicit PlainDecoder(DType dtype) : dtype_(dtype) {}

  using Decoder::decode;
  void decode(std::uint64_t, std::span<const std::byte> codes, std::span<float> out) const override {
    for_each_tile(dtype_, codes, [&](std::size_t i, std::span<const float> weights) {
      std::copy(weights.begin(), weights.end(), out.begin() + static_cast<std::ptrdiff_t>(i));
    });
  }

 private:
  std::uint64_t code_bytes(std::uint64_t n) const override { return byte_count(dtype_, n); }

  DType dtype_;
};

}  // namespace

std::unique_ptr<Decoder> make_plain_decoder(DType dtype) { return std::make_unique<PlainDecoder>(dtype); }

std::string_view to_string(PlaneRole role) noexcept {
  switch (role) {
    case PlaneRole::codes:
      return "codes";
    case PlaneRole::absmax:
      return "absmax";
    case PlaneRole::nested_absmax:
      return "nested_absmax";
    case PlaneRole::nested_codebook:
      return "nested_codebook";
    case PlaneRole::nested_offset:
      return "nested_offset";
    default:
      return "scale";
  }
}

std::string_view to_string(Granularity granularity) noexcept {
  switch (granularity) {
    case Granularity::row:
      return "row";
    case Granularity::tensor:
      return "tensor";
    default:
      return "block";
  }
}

void check_planes(const Codec& codec, const TensorInfo& tensor, std::span<const std::span<const std::byte>> rest) {
  const auto fail = [&](const std::string& fact) {
    throw Error(Errc::bad_input, "tensor '" + printable(tensor.name) + "': " + fact);
  };
  const std::vector<Plane> planes = codec.planes(tensor);
  if (rest.size() + 1 != planes.size())
    fail("has " + std::to_string(rest.size() + 1) + " planes, not " + std::to_string(planes.size()));
  for (std::size_t i = 0; i < rest.size(); ++i)
    if (rest[i].size() != planes[i + 1].bytes())
      fail(std::string(to_string(planes[i + 1].role)) + " has " + std::to_string(rest[i].size()) + " bytes, not " +
           std::to_string(planes[i + 1].bytes()));
}

// Through fp32, in tiles that stay in the cache.
void Decoder::decode(std::uint64_t first, std::span<const std::byte> codes, DType to, std::span<std::byte> out) const {
  if (to != DType::f32 && to != DType::bf16 && to != DType::f16)
    throw Error(Errc::usage, "weights are decoded to F32, BF16 or F16, not to " + std::string(traits(to).name));
  const std::size_t size = traits(to).bits / 8, n = out.size() / size;
  alignas(64) std::array<float, tile_weights> weights;
  std::array<std::uint16_t, tile_weights> halves;
  for (std::size_t i = 0; i < n; i += tile_weights) {
    const std::size_t count = std::min(tile_weights, n - i);
    const std::uint64_t begin = code_bytes(i), end = i + count == n ? codes.size() : code_bytes(i + count);
    const std::span<float> tile = std::span(weights).first(count);
    const std::span<std::uint16_t> narrow = std::span(halves).first(count);
    decode(first + i, codes.subspan(begin, end - begin), tile);
    if (to == DType::bf16) (void)bf16::encode(tile, narrow);
    if (to == DType::f16) (void)fp16::encode(tile, narrow);
    const void* const from = to == DType::f32 ? static_cast<const void*>(tile.data()) : narrow.data();
    std::memcpy(out.data() + i * size, from, count * size);
  }
}

}  // namespace nibble
