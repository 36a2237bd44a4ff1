#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "nibble/nested.hpp"

namespace nibble::nested {

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
