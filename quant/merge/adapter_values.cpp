#include "quant/merge/adapter_values.hpp"

namespace nibble {

void read_as_floats(const Reader& reader, std::size_t tensor, std::uint64_t first, std::span<float> out) {
  const DType dtype = reader.tensors().dtype(tensor);
  const std::uint64_t width = traits(dtype).bits / 8;
  alignas(64) std::array<std::byte, tile_weights * sizeof(double)> raw;
  for (std::size_t i = 0; i < out.size(); i += tile_weights) {
    const std::size_t n = std::min(tile_weights, out.size() - i);
    const auto bytes = std::span(raw).first(n * width);
    reader.read(tensor, (first + i) * width, bytes);
    const auto tile = out.subspan(i, n);
    if (const auto floats = widen(dtype, bytes, tile); floats.data() != tile.data())
      std::ranges::copy(floats, tile.begin());
  }
}

}  // namespace nibble
