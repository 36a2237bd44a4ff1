#pragma once

#include <cstddef>
#include <span>

#include "quant/codecs/four_bit/four_bit.hpp"

namespace nibble {

inline constexpr std::size_t max_search_ratios = 20;

/// What to multiply the largest magnitude of a block by to get the numbers that a search tries.
[[nodiscard]] std::span<const float> search_ratios(std::size_t blocksize, AbsmaxChoice choice);

}  // namespace nibble
