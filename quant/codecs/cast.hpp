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
#include "nibble/metrics.hpp"
#include "quant/simd/widen.hpp"

/// What fp32, fp16 and bf16 share: one part of the same name and shape, and counting what does not fit.
namespace nibble {

/// What an inner loop counts.
struct CastCounts {
  bool special = false;  ///< NaN, infinity or overflow: how many of which, count_casts() finds out
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
  const std::span<const float> widened = widen(source, weights, tile, Rounding::odd);  // what is finite stays so
  for (std::size_t i = 0; i < widened.size(); ++i)
    if (is_infinite(i) && std::isfinite(widened[i])) clamp(i, std::signbit(widened[i]));
}

/// compare_squares() of F64 weights, without rounding them first. Those beyond fp32 count nowhere.
inline ErrorSums compare_fp64(std::span<const std::byte> weights, std::span<const float> test) {
  ErrorSums sums;
  for (std::size_t i = 0; i < test.size(); ++i) {
    double w = 0;
    std::memcpy(&w, weights.data() + i * sizeof(w), sizeof(w));
    const double t = test[i];
    if (!(std::abs(w) <= std::numeric_limits<float>::max()) || !std::isfinite(t)) continue;
    sums.add({1, (t - w) * (t - w), w * t, w * w, t * t});
  }
  return sums;
}

/// Stores every weight as Format::Stored, which is what DType Format::dtype is in memory. Format also has a name, a
/// summary, encode(source, bytes, out) for up to tile_weights weights, and Stored is what widen() reads back.
template <class Format> class CastCodec final : public Codec {
  using Stored = typename Format::Stored;

 public:
  explicit CastCodec(const Format& format) : format_(format) {}

  std::string_view name() const noexcept override { return Format::name; }
  std::string_view summary() const noexcept override { return Format::summary; }
  std::vector<TensorInfo> parts(const TensorInfo& tensor) const override {
    return {{tensor.name, Format::dtype, tensor.shape}};
  }
  Chunking chunking(const TensorInfo&, std::uint64_t limit) const override {
    if (limit > tile_weights) limit -= limit % tile_weights;  // pieces of errors are not cut
    return {std::max<std::uint64_t>(limit, 1), false};
  }
  std::unique_ptr<Encoder> encoder(const TensorInfo& tensor, const Chunking&, Scratch&) const override {
    return std::make_unique<CastEncoder>(format_, tensor.dtype);
  }
  std::unique_ptr<Decoder> decoder(const TensorInfo&, std::span<const std::span<const std::byte>>) const override {
    return std::make_unique<CastDecoder>();
  }
  std::optional<DType> cast_type() const override { return Format::dtype; }
  double normal_sqnr_db(const TensorInfo&) const override { return Format::normal_sqnr_db; }

 private:
  class CastEncoder final : public Encoder {
   public:
    CastEncoder(const Format& format, DType source) : format_(format), source_(source) {}

    Findings encode(std::uint64_t first, std::span<const std::byte> weights, std::span<std::byte> out,
                    std::vector<ErrorSums>* errors) override {
      const std::size_t size = traits(source_).bits / 8;
      const std::size_t n = weights.size() / size;
      Findings findings;
      std::array<Stored, tile_weights> stored;  // `out` need not be aligned
      for (std::size_t i = 0; i < n; i += tile_weights) {
        const std::size_t count = std::min(tile_weights, n - i);
        const auto bytes = weights.subspan(i * size, count * size);
        Findings here = format_.encode(source_, bytes, std::span(stored).first(count));
        if (here.first_nonfinite != UINT64_MAX) here.first_nonfinite += first + i;
        findings.add(here);
        // What has the type already keeps its bytes, signalling NaNs too.
        const void* from = source_ == Format::dtype ? static_cast<const void*>(bytes.data()) : stored.data();
        std::memcpy(out.data() + i * sizeof(Stored), from, count * sizeof(Stored));
        if (errors != nullptr && source_ != Format::dtype) {
          alignas(64) std::array<float, tile_weights> tile;
          alignas(64) std::array<float, tile_weights> decoded;
          const auto test = widen(Format::dtype, std::as_bytes(std::span(stored).first(count)), decoded);
          errors->push_back(source_ == DType::f64 ? compare_fp64(bytes, test)
                                                  : compare_squares(widen(source_, bytes, tile), test));
        }
      }
      return findings;
    }

   private:
    Format format_;
    DType source_;
  };

  class CastDecoder final : public Decoder {
   public:
    void decode(std::uint64_t, std::span<const std::byte> in, std::span<float> out) const override {
      for_each_tile(Format::dtype, in, [&](std::size_t i, std::span<const float> weights) {
        std::copy(weights.begin(), weights.end(), out.begin() + static_cast<std::ptrdiff_t>(i));
      });
    }
  };

  Format format_;
};

/// Calls encode(source, bytes) for one tile on its way to 16 bits. fp64 goes through fp32 rounded to odd, so that it is
/// rounded once (torch rounds it twice).
template <class Encode> Findings narrow_tile(DType source, std::span<const std::byte> weights, Encode&& encode) {
  if (source != DType::f64) return encode(source, weights);
  alignas(64) std::array<float, tile_weights> tile;
  return encode(DType::f32, std::as_bytes(widen(source, weights, tile, Rounding::odd)));
}

}  // namespace nibble
