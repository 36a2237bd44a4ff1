#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace nibble {

/// What the caller may change to avoid an error or a warning. The texts of the library state facts and limits, and name
/// no option of a program. A program looks at the remedy and tells its users how they apply it: the command line does
/// so in cli/terminal/remedies.cpp.
struct Remedy {
  enum class Kind : std::uint8_t {
    none,
    max_memory,              ///< a larger OpenOptions::max_memory or Resources::max_memory
    dequantize,              ///< Intake::any, or first a conversion of the input with Intake::quantized to a plain type
    merge,                   ///< open_merged(), with the base of this adapter
    replace_output,          ///< ConversionOptions::overwrite, which replaces the output
    finish_replacement,      ///< ConversionOptions::overwrite, which finishes an interrupted replacement
    allow_nibble_only,       ///< Recipe::allow_nibble_only, which accepts the result
    nibble_only_formats,     ///< Recipe::allow_nibble_only, which allows more formats
    no_double_quant,         ///< a codec with double-quant=no
    nonfinite,               ///< another Recipe::nonfinite
    on_overflow,             ///< another Recipe::on_overflow
    device,                  ///< another DeviceChoice
    experts,                 ///< a codec for Recipe::experts, and Recipe::allow_nibble_only
    embeddings,              ///< a 16-bit type for Recipe::embeddings
    lm_head,                 ///< a 16-bit type for Recipe::lm_head
    embeddings_and_lm_head,  ///< both
    plain_types,             ///< Recipe::rules that cast the plain weights of another type
    reasons,                 ///< PlannedTensor::reason, which says why for each tensor
    resume,                  ///< ConversionOptions::resume, which goes on with an interrupted conversion
    begin_again,             ///< not ConversionOptions::resume: what an interrupted conversion left is removed
  };
  Kind kind = Kind::none;
  std::uint64_t bytes = 0;  ///< max_memory: the minimum, as far as it is known

  bool operator==(const Remedy&) const = default;
};

/// A warning, or why something is not allowed: one line of text, and what helps.
struct Message {
  Message(std::string what, Remedy helps = {}) : text(std::move(what)), remedy(helps) {}
  std::string text;
  Remedy remedy;
};

}  // namespace nibble
