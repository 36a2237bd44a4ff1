#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/memory/scratch.hpp"

namespace nibble::scratch_test {

using Bytes = std::vector<std::byte>;

inline Bytes pattern(std::size_t size, unsigned seed) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 251 + seed);
  return bytes;
}

inline Bytes read(const Scratch& scratch, std::uint64_t offset, std::size_t size) {
  Bytes bytes(size);
  scratch.read(offset, bytes);
  return bytes;
}

}  // namespace nibble::scratch_test
