#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "nibble/nested.hpp"

namespace nibble::nested {

/// Calls f(at, n) for the parts of [first, first + count) that have one nested absmax each.
template <class F> void for_each_part_of_a_block(std::uint64_t first, std::uint64_t count, F&& f) {
  for (std::uint64_t at = first; at < first + count;) {
    const std::uint64_t n = std::min<std::uint64_t>(first + count - at, blocksize - at % blocksize);
    f(at, n);
    at += n;
  }
}

/// The 256 values of a codebook, ready to be looked up often: decode_slice() takes less time with it.
class Table {
 public:
  /// Decodes empty slices only.
  Table() = default;
  /// The values have to outlive the table.
  explicit Table(std::span<const float, 256> values);

  /// The same numbers as decode_slice().
  void decode_slice(std::uint64_t first, std::span<const std::uint8_t> codes, std::span<const float> nested_absmax,
                    float offset, std::span<float> absmax) const;

 private:
  const float* values_ = nullptr;
  bool has_bytes_ = false;
  // Byte b of the value of a code. Only if has_bytes_.
  alignas(64) std::array<std::array<std::uint8_t, 256>, 4> bytes_{};
};

}  // namespace nibble::nested
