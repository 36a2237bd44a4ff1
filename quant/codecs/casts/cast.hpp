#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/codec.hpp"
#include "nibble/error.hpp"
#include "nibble/findings.hpp"
#include "quant/codecs/codecs.hpp"
#include "quant/simd/widen.hpp"

/// What fp32, fp16 and bf16 share: one number for each weight, and counts of what does not fit.
namespace nibble {

/// What an inner loop counts.
struct CastCounts {
  bool special = false;  ///< NaN, infinity or overflow together; count_casts() tells them apart
  std::uint32_t underflow = 0;
  std::uint32_t subnormal = 0;
};

inline void check_same_size(std::string_view what, std::size_t weights, std::size_t stored) {
  if (weights != stored)
    throw Error(Errc::usage, std::string(what) + ": " + std::to_string(weights) + " weights do not fit " +
                                 std::to_string(stored) + " stored values");
}

/// Calls cast(i, bytes, counts) for tiles of F32, BF16 or F16 weights and sums up.
template <class Cast>
Findings count_casts(DType source, std::span<const std::byte> weights, float smallest_overflow, Cast&& cast) {
  const std::size_t size = traits(source).bits / 8;
  const std::size_t n = weights.size() / size;
  Findings findings;
  for (std::size_t i = 0; i < n; i += tile_weights) {
    const auto tile = weights.subspan(i * size, std::min(tile_weights, n - i) * size);
    CastCounts counts;
    cast(i, tile, counts);
    if (counts.special) findings.add(count_nonfinite(source, tile, i, smallest_overflow));
    findings.underflow += counts.underflow;
    findings.subnormal += counts.subnormal;
  }
  return findings;
}

/// Calls clamp(i, negative) for finite weights of a tile that were stored as infinity.
template <class IsInfinite, class Clamp>
void for_each_overflow(DType source, std::span<const std::byte> weights, IsInfinite&& is_infinite, Clamp&& clamp) {
  alignas(64) std::array<float, tile_weights> tile;
  const std::span<const float> widened = widen(source, weights, tile, Rounding::odd);  // finite weights stay finite
  for (std::size_t i = 0; i < widened.size(); ++i)
    if (is_infinite(i) && std::isfinite(widened[i])) clamp(i, std::signbit(widened[i]));
}

/// A codec that stores every weight as a number of another type.
class CastCodec : public Codec {
 public:
  using Codec::Codec;

  /// Stores at most tile_weights weights and returns what did not fit; `stored` is aligned for its type.
  virtual Findings encode(DType source, std::span<const std::byte> weights, std::span<std::byte> stored,
                          OnOverflow on_overflow) const = 0;

  std::vector<Plane> planes(const TensorInfo& tensor) const final {
    return {{PlaneRole::codes, *cast_type(), tensor.shape}};
  }
  std::uint64_t code_bytes(const TensorInfo&, std::uint64_t n) const final { return byte_count(*cast_type(), n); }
  std::unique_ptr<Decoder> decoder(const TensorInfo&, std::span<const std::span<const std::byte>>) const final {
    return make_plain_decoder(*cast_type());
  }
};

/// Format has a dtype, its type in memory (Stored), normal_sqnr_db, and encode(source, bytes, out, on_overflow).
template <class Format> class CastCodecOf final : public CastCodec {
  using Stored = typename Format::Stored;

 public:
  explicit CastCodecOf(const CodecSpec& spec) : CastCodec(spec) {}

  std::optional<DType> cast_type() const noexcept override { return Format::dtype; }
  double normal_sqnr_db(const TensorInfo&) const override { return Format::normal_sqnr_db; }
  Findings encode(DType source, std::span<const std::byte> weights, std::span<std::byte> stored,
                  OnOverflow on_overflow) const override {
    return Format::encode(source, weights,
                          std::span(reinterpret_cast<Stored*>(stored.data()), stored.size() / sizeof(Stored)),
                          on_overflow);
  }
};

/// Calls encode(source, bytes) for one tile on its way to 16 bits. fp64 goes through fp32 rounded to odd, so that it is
/// rounded once (torch rounds it twice).
template <class Encode> Findings narrow_tile(DType source, std::span<const std::byte> weights, Encode&& encode) {
  if (source != DType::f64) return encode(source, weights);
  alignas(64) std::array<float, tile_weights> tile;
  return encode(DType::f32, std::as_bytes(widen(source, weights, tile, Rounding::odd)));
}

}  // namespace nibble
