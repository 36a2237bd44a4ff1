#include "quant/matmul/operands.hpp"

#include <array>
#include <cstring>

#include "nibble/bf16.hpp"
#include "nibble/fp16.hpp"
#include "quant/simd/widen.hpp"

namespace nibble::matmul {

void round(const Operands& operands, Range rows, Range columns, std::size_t all_columns, float* sums,
           std::size_t stride) {
  std::array<float, max_rounded_columns> bias;
  std::array<std::uint16_t, max_rounded_columns> halves;
  const std::size_t size = traits(operands.dtype).bits / 8, bytes = columns.size * size;
  std::span<const float> wide;
  if (!operands.bias.empty()) wide = widen(operands.dtype, operands.bias.subspan(columns.first * size, bytes), bias);
  for (std::size_t row = 0; row < rows.size; ++row) {
    const std::span<float> numbers(sums + row * stride, columns.size);
    for (std::size_t i = 0; i < wide.size(); ++i) numbers[i] += wide[i];
    std::byte* const y = operands.y.data() + ((rows.first + row) * all_columns + columns.first) * size;
    if (operands.dtype == DType::f32) {
      std::memcpy(y, numbers.data(), bytes);
      continue;
    }
    const std::span<std::uint16_t> rounded = std::span(halves).first(columns.size);
    (void)(operands.dtype == DType::bf16 ? bf16::encode(numbers, rounded) : fp16::encode(numbers, rounded));
    std::memcpy(y, rounded.data(), bytes);
  }
}

}  // namespace nibble::matmul
