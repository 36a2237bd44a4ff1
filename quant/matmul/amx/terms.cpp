#include "quant/matmul/amx/terms.hpp"

#include "nibble/bf16.hpp"

namespace nibble::matmul {

void take_term(std::span<float> numbers, std::span<std::uint16_t> term) {
  (void)bf16::encode(numbers, term);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] -= bf16::to_float(term[i]);
}

}  // namespace nibble::matmul
