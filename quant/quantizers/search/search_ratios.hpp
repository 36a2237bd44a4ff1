#pragma once

#include <cstddef>
#include <span>

#include "quant/codecs/four_bit/four_bit.hpp"

namespace nibble {

/// What to multiply the largest magnitude of a block by to get the numbers that a search tries, at most 24.
[[nodiscard]] std::span<const float> search_ratios(std::size_t blocksize, AbsmaxChoice choice);

}  // namespace nibble
