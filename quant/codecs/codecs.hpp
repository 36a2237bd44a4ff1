#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "nibble/codec.hpp"

namespace nibble {

inline constexpr std::string_view keep_codec = "keep";  ///< the codec that leaves a tensor as it is

/// Throws Error(bad_input) unless `rest` has the bytes of planes()[1...] of a tensor.
void check_planes(const Codec& codec, const TensorInfo& tensor, std::span<const std::span<const std::byte>> rest);

/// The way back from weights that are stored as they are, in a weight type.
[[nodiscard]] std::unique_ptr<Decoder> make_plain_decoder(DType dtype);

}  // namespace nibble
