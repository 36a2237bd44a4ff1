#pragma once

#include <algorithm>
#include <array>
#include <span>
#include <string_view>

#include "nibble/codec.hpp"
#include "nibble/fp4.hpp"
#include "nibble/nf4.hpp"

/// bitsandbytes' names of the codebooks that 4-bit layers can have.
namespace nibble {

struct QuantType {
  std::string_view name;  ///< in the names of tensors, in quant_state and in config.json
  std::span<const float> codebook;
};

inline constexpr std::array<QuantType, 2> quant_types{{{"nf4", nf4::codebook.value}, {"fp4", fp4::codebook.value}}};

/// The name of a codec's codebook; empty if it has none.
[[nodiscard]] inline std::string_view quant_type_of(const Codec& codec) {
  const auto found = std::ranges::find_if(
      quant_types, [&](const QuantType& type) { return std::ranges::equal(type.codebook, codec.codebook()); });
  return found == quant_types.end() ? std::string_view() : found->name;
}

}  // namespace nibble
