#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "nibble/codec.hpp"
#include "nibble/plan.hpp"
#include "quant/stream/codings.hpp"

/// Tensors with values that the planned codec cannot hold.
namespace nibble {

/// The codec for a tensor in which `found` was found, if it is not the planned one: "keep"; for F64, which transformers
/// does not expect in a quantized model, the cast to F32, if that can hold it. Nothing if it stays as planned.
[[nodiscard]] std::optional<CodecSpec> codec_instead(const Recipe& recipe, const PlannedTensor& tensor,
                                                     const Findings& found);

/// The tensor as it is then stored: with that codec, in the layout of the input. Its reason stays the planned one.
[[nodiscard]] std::optional<PlannedTensor> planned_instead(const Recipe& recipe, const PlannedTensor& tensor,
                                                           const Findings& found, const Codings& codings);

/// What a cast to this type does with finite values that are too large; never `automatic`.
[[nodiscard]] OnOverflow overflow_policy(const Recipe& recipe, DType cast);

/// Why the recipe does not allow the findings of `codec` in `weights` weights of a tensor; nothing if it allows them.
[[nodiscard]] std::optional<Message> objection(const Recipe& recipe, const PlannedTensor& tensor, const Findings& found,
                                               std::uint64_t weights);

/// "1 NaN, 2 infinite, 3 beyond fp16"; `codec` is the one that found them.
[[nodiscard]] std::string describe(const Findings& found, const CodecSpec& codec);

/// The same, and what is stored instead: "3 beyond fp16, stored as infinity" by a cast, "1 NaN; stored instead: 0 for
/// NaN" by a codec that quantizes.
[[nodiscard]] std::string describe(const Findings& found, const Recipe& recipe, const PlannedTensor& tensor);

}  // namespace nibble
