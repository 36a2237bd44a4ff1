#include "quant/nonfinite.hpp"

#include <fmt/format.h>

#include "quant/codecs.hpp"

namespace nibble {
namespace {

// The type whose range counts for a codec.
std::string_view range_of(std::string_view name) {
  const auto codec = make_codec(name);
  if (codec->cast_type()) return name;
  const auto bnb = codec->bnb_config();
  return bnb && bnb->bits == 8 ? "fp16" : "fp32";
}

}  // namespace

std::optional<std::string_view> codec_instead(const Recipe& recipe, const PlannedTensor& tensor,
                                              const Findings& found) {
  if (recipe.nonfinite != Nonfinite::keep || found.nan + found.inf + found.overflow == 0) return std::nullopt;
  if (tensor.quantized && tensor.info.dtype == DType::f64 && found.overflow_fp32 == 0) return "fp32";
  if (tensor.quantized) return keep_codec;
  // An F64 tensor that was cast because the model is quantized: fp32 would make infinities of it.
  if (tensor.info.dtype == DType::f64 && found.overflow_fp32 > 0 && make_codec(recipe.to)->bnb_config())
    return keep_codec;
  return std::nullopt;
}

std::string describe(const Findings& found, std::string_view codec) {
  std::string text;
  const auto add = [&](std::uint64_t count, std::string_view what) {
    if (count > 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, what);
  };
  add(found.nan, "NaN");
  add(found.inf, "infinite");
  if (found.overflow_fp32 == found.overflow) {
    add(found.overflow, "beyond fp32");
  } else {
    add(found.overflow, fmt::format("beyond {}", range_of(codec)));
    add(found.overflow_fp32, "of them beyond fp32");
  }
  return text;
}

}  // namespace nibble
