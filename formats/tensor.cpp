#include "nibble/tensor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "core/checked.hpp"

namespace nibble {

std::uint64_t element_count(std::span<const std::uint64_t> shape) {
  if (std::find(shape.begin(), shape.end(), 0u) != shape.end()) return 0;
  Checked count = 1;
  for (const std::uint64_t dimension : shape) count = count * dimension;
  if (!count.valid())
    throw Error(Errc::bad_input,
                fmt::format("the elements of shape {} exceed 64 bits", to_string(Shape(shape.begin(), shape.end()))));
  return count.value();
}

std::uint64_t byte_count(DType dtype, std::uint64_t elements) {
  // In bits, as the safetensors library counts: what it finds too large is too large here.
  const Checked bits = Checked(elements) * traits(dtype).bits;
  if (!bits.valid())
    throw Error(Errc::bad_input, fmt::format("{} elements of {} exceed 64 bits", elements, traits(dtype).name));
  if (bits.value() % 8 != 0)
    throw Error(Errc::bad_input,
                fmt::format("{} elements of {} are not a whole number of bytes", elements, traits(dtype).name));
  return bits.value() / 8;
}

std::string to_string(const Shape& shape) {
  constexpr std::size_t shown = 16;  // a header may claim millions of dimensions
  if (shape.empty()) return "scalar";
  std::string text = std::to_string(shape[0]);
  for (std::size_t i = 1; i < std::min(shape.size(), shown); ++i) text.append(" x ").append(std::to_string(shape[i]));
  if (shape.size() > shown) text += fmt::format(" x ... ({} dimensions)", shape.size());
  return text;
}

}  // namespace nibble
