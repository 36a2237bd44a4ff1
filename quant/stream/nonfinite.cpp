#include "quant/stream/nonfinite.hpp"

#include <fmt/format.h>

#include <limits>
#include <utility>

#include "nibble/bf16.hpp"
#include "nibble/fp16.hpp"
#include "quant/codecs/codecs.hpp"
#include "quant/schemes/scheme.hpp"

namespace nibble {
namespace {

// The type whose range limits a codec, by the name of the codec that casts to it.
std::string_view range_of(const CodecSpec& codec) { return cast_codec(make_codec(codec)->range()).name(); }

// The largest value of that type: "65504", "3.39e38".
std::string largest_of(const CodecSpec& codec) {
  const DType range = make_codec(codec)->range();
  const float largest = range == DType::f16    ? fp16::largest
                        : range == DType::bf16 ? bf16::to_float(0x7F7F)
                                               : std::numeric_limits<float>::max();
  std::string text = largest < 1e6F ? fmt::format("{}", largest) : fmt::format("{:.2e}", largest);
  std::erase(text, '+');
  return text;
}

// What Nonfinite::quantize stores instead of such values.
std::string stored_instead(const Findings& found, const CodecSpec& codec) {
  std::string text;
  const auto add = [&](bool any, std::string_view what) {
    if (any) text += fmt::format("{}{}", text.empty() ? "; stored instead: " : ", ", what);
  };
  add(found.nan > 0, "0 for NaN");
  const bool beyond = found.overflow_fp32 > 0;
  add(found.inf > 0 || beyond,
      fmt::format("the largest finite magnitude of its {} for {}", to_string(make_codec(codec)->granularity()),
                  !beyond         ? "infinities"
                  : found.inf > 0 ? "values that are infinite or beyond fp32"
                                  : "values beyond fp32"));
  add(found.overflow > found.overflow_fp32, fmt::format("{} for values beyond {}", largest_of(codec), range_of(codec)));
  return text;
}

}  // namespace

std::optional<CodecSpec> codec_instead(const Recipe& recipe, const PlannedTensor& tensor, const Findings& found) {
  if (found.nan + found.inf + found.overflow == 0) return std::nullopt;
  if (!tensor.quantized) {
    // An F64 tensor that was cast because the model is quantized: in fp32 its large values would become infinities,
    // unless they are clamped or refused.
    const OnOverflow policy = recipe.on_overflow;
    const bool stays = recipe.nonfinite != Nonfinite::error && policy != OnOverflow::error &&
                       policy != OnOverflow::clamp && tensor.info.dtype == DType::f64 && found.overflow_fp32 > 0 &&
                       make_codec(recipe.to)->quantizes();
    return stays ? std::optional(CodecSpec()) : std::nullopt;
  }
  if (recipe.nonfinite != Nonfinite::keep) return std::nullopt;
  if (tensor.info.dtype == DType::f64 && found.overflow_fp32 == 0) return cast_codec(DType::f32);
  return CodecSpec();
}

std::optional<PlannedTensor> planned_instead(const Recipe& recipe, const PlannedTensor& tensor, const Findings& found,
                                             const Codings& codings) {
  const auto codec = codec_instead(recipe, tensor, found);
  if (!codec) return std::nullopt;
  PlannedTensor instead = tensor;
  instead.codec = *codec;
  instead.quantized = false;
  instead.decided_by = DecidedBy::nonfinite;
  if (tensor.role == Role::conv1d) {  // codecs that quantize see it transposed
    instead.transposed = !tensor.transposed;
    std::swap(instead.info.shape[0], instead.info.shape[1]);
  }
  instead.stored_bytes = stored_bytes(*codings[instead.codec].codec, instead.info);
  return instead;
}

OnOverflow overflow_policy(const Recipe& recipe, DType cast) {
  const OnOverflow policy = recipe.on_overflow;
  if (policy != OnOverflow::automatic) return policy;
  return cast == DType::f16 ? OnOverflow::error : OnOverflow::keep;
}

std::optional<Message> objection(const Recipe& recipe, const PlannedTensor& tensor, const Findings& found,
                                 std::uint64_t weights) {
  using enum Remedy::Kind;
  const bool strict = recipe.nonfinite == Nonfinite::error;
  if (found.nan + found.inf > 0 && strict)
    return Message(fmt::format("{} NaN and {} infinite of {} weights, the first at {}; none is allowed", found.nan,
                               found.inf, weights, found.first_nonfinite),
                   Remedy{nonfinite});
  if (found.overflow == 0 || (tensor.quantized && !strict) || codec_instead(recipe, tensor, found)) return std::nullopt;
  std::string text = fmt::format("{} of {} weights exceed {}, the largest {}", found.overflow, weights,
                                 largest_of(tensor.codec), range_of(tensor.codec));
  if (found.nan + found.inf == 0) text += fmt::format(", the first at {}", found.first_nonfinite);
  if (tensor.quantized) return Message(text, Remedy{nonfinite});
  switch (overflow_policy(recipe, *make_codec(tensor.codec)->cast_type())) {
    case OnOverflow::error:
      return Message(text, Remedy{on_overflow});
    case OnOverflow::keep:
      if (strict) return Message(text + "; no infinity is allowed", Remedy{nonfinite});
      return std::nullopt;
    default:
      return std::nullopt;
  }
}

std::string describe(const Findings& found, const CodecSpec& codec) {
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

std::string describe(const Findings& found, const Recipe& recipe, const PlannedTensor& tensor) {
  std::string text = describe(found, tensor.codec);
  const auto cast = make_codec(tensor.codec)->cast_type();
  if (tensor.quantized) return text + stored_instead(found, tensor.codec);
  if (found.overflow == 0 || !cast) return text;
  const bool clamps = overflow_policy(recipe, *cast) == OnOverflow::clamp;
  return text + (clamps ? fmt::format(", stored as the largest {}", tensor.codec.name()) : ", stored as infinity");
}

}  // namespace nibble
