#pragma once

#include <cstddef>

namespace nibble::matmul {

/// Rows or columns [first, first + size).
struct Range {
  std::size_t first, size;
};

}  // namespace nibble::matmul
