#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/codec.hpp"

namespace nibble {

/// A line of the registry. Each codec's file defines one as a constant.
struct RegisteredCodec {
  CodecInfo info;
  std::unique_ptr<const Codec> (*make)(const CodecSpec& spec);
  std::span<const std::string_view> synonyms = {};  ///< what others call it, in lower case: errors suggest its name
};

/// "'int4' is not one of int8, nf4, fp4: did you mean nf4?" `names` are those of some codecs.
[[nodiscard]] std::string none_of_codecs(std::string_view given, std::span<const std::string_view> names);

/// The options that the text of a CodecSpec sets, as the codec declares their names. Throws Error(usage) as CodecSpec
/// does.
[[nodiscard]] std::vector<std::string_view> given_options(std::string_view text);

/// How most codecs are made.
template <class Made> std::unique_ptr<const Codec> make_of_spec(const CodecSpec& spec) {
  return std::make_unique<Made>(spec);
}

/// Throws Error(bad_input) unless `rest` has the bytes of planes()[1...] of a tensor.
void check_planes(const Codec& codec, const TensorInfo& tensor, std::span<const std::span<const std::byte>> rest);

/// The codec that casts to this type, if there is one.
[[nodiscard]] std::optional<CodecSpec> find_cast_codec(DType to);

/// The same; throws Error(usage) if there is none.
[[nodiscard]] CodecSpec cast_codec(DType to);

/// The decoder of weights that are stored plain, in a weight type.
[[nodiscard]] std::unique_ptr<Decoder> make_plain_decoder(DType dtype);

}  // namespace nibble
