#include "formats/equal_tensors.hpp"

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace nibble {

bool are_equal(const Reader& in, std::size_t a, std::size_t b) {
  const TensorInfo of_a = in.tensors()[a], of_b = in.tensors()[b];
  if (of_a.dtype != of_b.dtype || of_a.shape != of_b.shape) return false;
  constexpr std::uint64_t piece = 1 << 20;
  std::vector<std::byte> bytes_a(std::min(piece, of_a.bytes())), bytes_b(bytes_a.size());
  for (std::uint64_t at = 0; at < of_a.bytes(); at += piece) {
    const std::size_t size = std::min(piece, of_a.bytes() - at);
    const auto part_a = std::span(bytes_a).first(size), part_b = std::span(bytes_b).first(size);
    in.read(a, at, part_a);
    in.read(b, at, part_b);
    if (!std::ranges::equal(part_a, part_b)) return false;
  }
  return true;
}

}  // namespace nibble
