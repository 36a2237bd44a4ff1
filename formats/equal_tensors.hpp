#pragma once

#include <cstddef>

#include "nibble/checkpoint.hpp"

namespace nibble {

/// Whether two tensors have the same type, shape and bytes. Reads both, up to the first MiB that differs.
[[nodiscard]] bool are_equal(const Reader& in, std::size_t a, std::size_t b);

}  // namespace nibble
