#include <array>
#include <cmath>
#include <limits>
#include <string_view>

#include "quant/codecs/casts/cast.hpp"

namespace nibble {
namespace {

struct Fp32 {
  using Stored = float;
  static constexpr DType dtype = DType::f32;
  static constexpr double normal_sqnr_db = std::numeric_limits<double>::infinity();

  static Findings encode(DType source, std::span<const std::byte> weights, std::span<Stored> out,
                         OnOverflow on_overflow) {
    alignas(64) std::array<float, tile_weights> tile;
    const std::span<const float> widened = widen(source, weights, tile);
    std::copy(widened.begin(), widened.end(), out.begin());

    Findings findings;
    const Stored* const stored = out.data();  // a span that checks every index is not vectorized
    std::uint32_t largest = 0, subnormal = 0;
    for (std::size_t i = 0; i < out.size(); ++i) {
      const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(stored[i]) & 0x7FFFFFFFu;
      largest = std::max(largest, magnitude);
      subnormal += magnitude - 1 < 0x007FFFFFu ? 1 : 0;
    }
    findings.subnormal = subnormal;
    if (largest >= 0x7F800000u) findings.add(count_nonfinite(source, weights, 0));
    if (source == DType::f64) {
      for (std::size_t i = 0; i < out.size(); ++i) {
        double weight = 0;
        std::memcpy(&weight, weights.data() + i * sizeof(weight), sizeof(weight));
        findings.underflow += out[i] == 0.0f && weight != 0.0;
      }
    }
    if (findings.overflow > 0 && on_overflow == OnOverflow::clamp)
      for_each_overflow(
          source, weights, [&](std::size_t i) { return std::isinf(out[i]); },
          [&](std::size_t i, bool negative) {
            out[i] = std::copysign(std::numeric_limits<float>::max(), negative ? -1.0f : 1.0f);
          });
    return findings;
  }
};

constexpr std::array<std::string_view, 3> fp32_synonyms{"float32", "f32", "float"};

}  // namespace

extern const RegisteredCodec fp32_codec;
const RegisteredCodec fp32_codec{
    {"fp32", "Cast to IEEE single precision, exact but for fp64", {}}, &make_of_spec<CastCodecOf<Fp32>>, fp32_synonyms};

}  // namespace nibble
