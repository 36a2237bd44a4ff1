#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "nibble/codec_spec.hpp"

namespace nibble {

/// How the absmax of a block or a row is chosen.
enum class AbsmaxChoice : std::uint8_t { max, search, search_positive };

/// In the order of AbsmaxChoice.
inline constexpr std::array<std::string_view, 3> absmax_choices{"max", "search", "search-positive"};

/// A codec with such a choice. A stored tensor does not tell how its absmax values were chosen.
inline constexpr CodecOption absmax_option{
    "absmax",
    "the absmax of a block or a row: its largest magnitude, or what a search finds to have the least squared error, of "
    "either sign (4 bits) or positive",
    absmax_choices, 0, false};

[[nodiscard]] inline AbsmaxChoice absmax_choice_of(const CodecSpec& spec) {
  return static_cast<AbsmaxChoice>(spec.index(absmax_option.name));
}

}  // namespace nibble
