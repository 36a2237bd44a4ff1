#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/refuse.hpp"
#include "nibble/checkpoint.hpp"
#include "quant/simd/widen.hpp"

namespace nibble {

/// The weights [first, first + out.size()) of a tensor as fp32.
void read_as_floats(const Reader& reader, std::size_t tensor, std::uint64_t first, std::span<float> out);

/// Calls f(i, value) for the numbers [first, end) of a tensor of an adapter. Throws Error(bad_input) if one is not
/// finite in fp32.
template <class F>
void for_each_value(const Reader& reader, std::size_t tensor, std::uint64_t first, std::uint64_t end, F&& f) {
  std::array<float, tile_weights> tile;
  for (; first < end; first += tile_weights) {
    const auto values = std::span(tile).first(std::min<std::uint64_t>(tile_weights, end - first));
    read_as_floats(reader, tensor, first, values);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (!std::isfinite(values[i]))
        refuse(reader.label_of(tensor), "tensor '{}': element {} is {} in fp32",
               printable(reader.tensors().name(tensor)), first + i, values[i]);
      f(first + i, values[i]);
    }
  }
}

}  // namespace nibble
