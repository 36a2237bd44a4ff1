#include "quant/quantizers/compensation/nested_range.hpp"

#include <algorithm>
#include <cmath>

#include "nibble/nested.hpp"
#include "quant/quantizers/search/signed_codebook.hpp"

namespace nibble {

NestedRange::NestedRange(std::span<const float> largest, AbsmaxChoice choice)
    : codebook(choice == AbsmaxChoice::max ? std::span<const float, 256>(nested::codebook)
                                           : std::span<const float, 256>(signed_codebook)),
      offset(choice == AbsmaxChoice::max ? nested::offset(largest) : 0.0f),
      codes_(choice == AbsmaxChoice::max ? std::span<const float>(nested::codebook) : used_signed_values) {
  for (std::size_t first = 0; first < largest.size(); first += nested::blocksize) {
    float range = 0;
    for (const float value : largest.subspan(first, std::min(nested::blocksize, largest.size() - first)))
      range = std::max(range, std::abs(value - offset));
    nested_absmax.push_back(range);
  }
}

float NestedRange::value_of(std::uint8_t code, std::uint64_t block) const {
  return codebook[code] * nested_absmax[block / nested::blocksize] + offset;
}

CodesAround NestedRange::around(float absmax, std::uint64_t block) const {
  const float range = nested_absmax[block / nested::blocksize];
  const float v = range == 0 ? 0.0f : (absmax - offset) / range;
  return codes_.around(v);
}

}  // namespace nibble
