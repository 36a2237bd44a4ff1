#pragma once

#include <cstddef>

namespace nibble {

/// to[c * to_stride + r] = from[r * from_stride + c] for r < rows and c < columns, in elements of 2, 4 or 8 bytes
/// (`width`). They need not be aligned.
void transpose(const std::byte* from, std::size_t from_stride, std::size_t rows, std::size_t columns, std::size_t width,
               std::byte* to, std::size_t to_stride);

}  // namespace nibble
