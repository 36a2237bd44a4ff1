#include "quant/matmul/arranged.hpp"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>

#include "quant/simd/widen.hpp"

namespace nibble::matmul {

Lines<std::uint32_t> arranged(const Arrangement& arrangement, const Operands& operands, std::size_t depth) {
  const std::size_t size = traits(operands.dtype).bits / 8, numbers = operands.m * depth;
  assert(arrangement.parts == 1 || arrangement.from == DType::bf16);
  Lines<std::uint32_t> words(arrangement.parts * arrangement.words(numbers));
  const auto write = [&](const void* from, std::size_t first, std::size_t n) {
    std::uint32_t* const to = words.data() + arrangement.words(first);
    if (arrangement.arrange != nullptr)
      arrangement.arrange(from, n, to);
    else
      std::memcpy(to, from, n * (traits(arrangement.from).bits / 8));
  };
  if (arrangement.from == DType::bf16) {
    write(operands.x.data(), 0, numbers);
    return words;
  }
  std::array<float, tile_weights> room;
  for (std::size_t i = 0; i < numbers; i += room.size()) {
    const std::size_t n = std::min(room.size(), numbers - i);
    write(widen(operands.dtype, operands.x.subspan(i * size, n * size), room).data(), i, n);
  }
  return words;
}

}  // namespace nibble::matmul
