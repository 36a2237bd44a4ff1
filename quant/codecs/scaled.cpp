#include "quant/codecs/scaled.hpp"

#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "nibble/bf16.hpp"
#include "nibble/error.hpp"
#include "nibble/fp16.hpp"
#include "quant/codecs/codecs.hpp"
#include "quant/simd/widen.hpp"

namespace nibble {
namespace {

class ScaledDecoder final : public Decoder {
 public:
  ScaledDecoder(ScaledCodec::Decode decode_region, const Regions& regions, std::vector<float> scales)
      : decode_region_(decode_region), regions_(regions), scales_(std::move(scales)) {}

  void decode(std::uint64_t first, std::span<const std::byte> codes, std::span<float> out) const override {
    decode_regions(first, codes, DType::f32, std::as_writable_bytes(out));
  }

  void decode(std::uint64_t first, std::span<const std::byte> codes, DType to,
              std::span<std::byte> out) const override {
    const bool is_aligned = reinterpret_cast<std::uintptr_t>(out.data()) % alignof(std::uint16_t) == 0;
    if ((to != DType::bf16 && to != DType::f16) || !is_aligned) return Decoder::decode(first, codes, to, out);
    decode_regions(first, codes, to, out);
  }

 private:
  void decode_regions(std::uint64_t first, std::span<const std::byte> codes, DType to, std::span<std::byte> out) const {
    const std::size_t size = traits(to).bits / 8;
    regions_.for_each_run(first, out.size() / size, [&](std::uint64_t region, std::size_t begin, std::size_t end) {
      decode_region_(codes.subspan(begin, end - begin), scales_[region], to,
                     out.subspan(begin * size, (end - begin) * size));
    });
  }

  std::uint64_t code_bytes(std::uint64_t n) const override { return n; }

  ScaledCodec::Decode decode_region_;
  Regions regions_;
  std::vector<float> scales_;
};

}  // namespace

std::vector<Plane> ScaledCodec::planes(const TensorInfo& tensor) const {
  const Regions regions(granularity(), tensor);
  const Shape scales = granularity() == Granularity::tensor ? Shape{1} : Shape{regions.bands(), regions.per_band()};
  return {{PlaneRole::codes, code_type(), tensor.shape}, {PlaneRole::scale, scale_type(tensor), scales}};
}

std::unique_ptr<Decoder> ScaledCodec::decoder(const TensorInfo& tensor,
                                              std::span<const std::span<const std::byte>> rest) const {
  const Regions regions(granularity(), tensor);
  DType type = scale_type(tensor);
  if (rest.size() == 1 && rest[0].size() == byte_count(DType::f32, regions.count()))
    type = DType::f32;
  else
    check_planes(*this, tensor, rest);
  return std::make_unique<ScaledDecoder>(decode_of_region(), regions, widen_scales(rest[0], type));
}

void narrow_scales(std::span<const float> scales, DType type, std::span<std::byte> stored) {
  if (type == DType::f32) {
    if (!scales.empty()) std::memcpy(stored.data(), scales.data(), stored.size());
    return;
  }
  std::vector<std::uint16_t> halves(scales.size());
  (void)(type == DType::bf16 ? bf16::encode(scales, halves) : fp16::encode(scales, halves));
  if (!scales.empty()) std::memcpy(stored.data(), halves.data(), stored.size());
}

std::vector<float> widen_scales(std::span<const std::byte> stored, DType type) {
  std::vector<float> scales;
  scales.reserve(stored.size() / (traits(type).bits / 8));
  for_each_tile(type, stored, [&](std::size_t, std::span<const float> tile) {
    scales.insert(scales.end(), tile.begin(), tile.end());
  });
  return scales;
}

}  // namespace nibble
