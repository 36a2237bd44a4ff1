#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/recipe.hpp"

/// Options whose values are codecs: "nf4", "nf4:block-size=32,double-quant=no".
namespace nibble::cli {

/// The name of such a value in help texts; completion recognizes it and offers codecs.
inline constexpr const char* codec_type = "CODEC";

/// The codecs that `convert --to` accepts: all but "keep".
[[nodiscard]] std::vector<std::string_view> target_names();

/// The codec that `option` was given. Throws Error(usage), which names the option, and offers only `names`.
[[nodiscard]] CodecSpec parse_codec(std::string_view option, std::string_view text,
                                    std::span<const std::string_view> names);

/// The value of --tensor, RE=CODEC. Both may contain "=": the codec begins after the first "=" that a codec's name
/// follows. Throws Error(usage).
[[nodiscard]] Rule parse_rule(const std::string& text);

/// The codecs for which `is_meant` is true: "nf4 and fp4".
[[nodiscard]] std::string codecs_where(const std::function<bool(const CodecSpec&)>& is_meant);

/// Those that have this option.
[[nodiscard]] std::string codecs_with(std::string_view option);

/// Every codec alone, and with each option value that is not the default; for completion.
[[nodiscard]] std::vector<std::string> codec_words();

/// For the end of a help text: the codecs and their options.
[[nodiscard]] std::string codec_help();

/// What `measure --to` and `convert --to` would do with this codec. NaN and infinities are kept, so that they show in
/// the figures.
[[nodiscard]] Recipe measured_recipe(const CodecSpec& codec);

}  // namespace nibble::cli
