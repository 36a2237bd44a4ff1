#pragma once

#include <cstddef>
#include <span>

#include "nibble/codec.hpp"
#include "nibble/measure.hpp"

namespace nibble {

/// Adds the counts of other weights.
void add(Counts& to, const Counts& from);

/// Counts the errors of weights by magnitude, that is, by the exponent of the fp32 number.
void count_errors(std::span<const float> reference, std::span<const float> test, Counts& counts);

/// Whether count_codes() can count the codes of this codec: it has a codebook, and two codes to a byte.
[[nodiscard]] bool has_four_bit_codes(const Codec& codec);

/// Counts 4-bit codes, two to a byte. If the number of weights is odd, the last code belongs to none of them.
void count_codes(std::span<const std::byte> packed, std::size_t weights, Counts& counts);

}  // namespace nibble
