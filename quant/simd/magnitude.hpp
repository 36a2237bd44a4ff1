#pragma once

#include <cstddef>
#include <span>

#include "nibble/tensor.hpp"

namespace nibble {

/// max |w| of F32, BF16 or F16 weights, 0 of none; NaN or infinity if there is one. The bytes need no alignment.
[[nodiscard]] float largest_magnitude(DType source, std::span<const std::byte> weights);

/// The same of every block. A blocksize is a multiple of 32; the last block may be short.
void largest_magnitudes(DType source, std::span<const std::byte> weights, std::size_t blocksize,
                        std::span<float> largest);

}  // namespace nibble
