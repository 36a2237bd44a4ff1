#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "quant/codecs/casts/cast.hpp"
#include "quant/errors/squares.hpp"
#include "quant/quantizers/quantizer.hpp"

namespace nibble {
namespace {

// compare_squares() of F64 weights, without rounding them first. Those beyond fp32 are not counted.
ErrorSums compare_fp64(std::span<const std::byte> weights, std::span<const float> test) {
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

class CastEncoder final : public Encoder {
 public:
  CastEncoder(const CastCodec& codec, OnOverflow on_overflow, DType source)
      : codec_(codec), on_overflow_(on_overflow), source_(source) {}

  Findings encode(std::uint64_t first, std::span<const std::byte> weights, std::span<std::byte> codes,
                  std::vector<ErrorSums>* errors) override {
    const DType dtype = *codec_.cast_type();
    const std::size_t size = traits(source_).bits / 8, stored_size = traits(dtype).bits / 8;
    const std::size_t n = weights.size() / size;
    Findings findings;
    alignas(64) std::array<std::byte, tile_weights * sizeof(float)> room;  // `codes` need not be aligned
    for (std::size_t i = 0; i < n; i += tile_weights) {
      const std::size_t count = std::min(tile_weights, n - i);
      const auto bytes = weights.subspan(i * size, count * size);
      const auto stored = std::span(room).first(count * stored_size);
      Findings here = codec_.encode(source_, bytes, stored, on_overflow_);
      if (here.first_nonfinite != UINT64_MAX) here.first_nonfinite += first + i;
      findings.add(here);
      // Weights that have the type already keep their bytes, including signalling NaNs.
      std::memcpy(codes.data() + i * stored_size, source_ == dtype ? bytes.data() : stored.data(), stored.size());
      if (errors != nullptr && source_ != dtype) {
        alignas(64) std::array<float, tile_weights> tile;
        alignas(64) std::array<float, tile_weights> decoded;
        const auto test = widen(dtype, stored, decoded);
        errors->push_back(source_ == DType::f64 ? compare_fp64(bytes, test)
                                                : compare_squares(widen(source_, bytes, tile), test));
      }
    }
    return findings;
  }

 private:
  const CastCodec& codec_;
  OnOverflow on_overflow_;
  DType source_;
};

class Caster final : public Quantizer {
 public:
  Caster(const CastCodec& codec, OnOverflow on_overflow) : codec_(codec), on_overflow_(on_overflow) {}

  Chunking chunking(const TensorInfo&, std::uint64_t limit) const override {
    if (limit > tile_weights) limit -= limit % tile_weights;  // pieces of errors are not cut
    return {std::max<std::uint64_t>(limit, 1), false};
  }
  std::unique_ptr<Encoder> encoder(const TensorInfo& tensor, const Chunking&, Scratch&) const override {
    return std::make_unique<CastEncoder>(codec_, on_overflow_, tensor.dtype);
  }

 private:
  const CastCodec& codec_;
  OnOverflow on_overflow_;
};

}  // namespace

std::unique_ptr<const Quantizer> make_cast_quantizer(const Codec& codec, const QuantizerOptions& options) {
  const auto* const cast = dynamic_cast<const CastCodec*>(&codec);
  return cast == nullptr ? nullptr : std::make_unique<Caster>(*cast, options.on_overflow);
}

}  // namespace nibble
