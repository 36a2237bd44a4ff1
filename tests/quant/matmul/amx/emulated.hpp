#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "quant/matmul/amx/amx_kernel.hpp"

/// Products of AMX tiles as Intel's manual describes TDPBF16PS, so that everything around them is tested on any
/// processor.
namespace nibble::matmul::emulated {

inline float flushed(float value) {
  return std::abs(value) < std::numeric_limits<float>::min() ? std::copysign(0.0f, value) : value;
}
inline float first_of(std::uint32_t word) { return flushed(std::bit_cast<float>(word << 16)); }
inline float second_of(std::uint32_t word) { return flushed(std::bit_cast<float>(word & 0xFFFF0000u)); }

inline void multiply(const AmxOperands& operands, bool is_first, float* sums, std::size_t sums_stride,
                     LinesAhead& ahead) {
  ahead.ask(ahead.left());
  for (std::size_t r = 0; r < operands.left_rows; ++r)
    for (std::size_t c = 0; c < operands.right_groups * amx_words; ++c) {
      const std::uint32_t* const left = operands.left + r * operands.left_stride;
      const std::uint32_t* const right = operands.right + c / amx_words * operands.right_stride + c % amx_words;
      float sum = is_first ? 0.0f : sums[r * sums_stride + c];
      for (std::size_t step = 0; step < operands.words; step += amx_words) {
        float first = 0, second = 0;
        for (std::size_t p = step; p < step + amx_words; ++p) {
          first = flushed(std::fma(first_of(left[p]), first_of(right[p * amx_words]), first));
          second = flushed(std::fma(second_of(left[p]), second_of(right[p * amx_words]), second));
        }
        sum = flushed(flushed(sum) + flushed(first + second));
      }
      sums[r * sums_stride + c] = sum;
    }
}

/// With the decoders of AMX if the processor and the CPU target multiply bf16, and otherwise with none.
inline AmxKernel kernel() {
  constexpr std::size_t nothing = std::numeric_limits<std::size_t>::max();
  const auto ignore = [] {};
  return {ignore, ignore, multiply, amx_row_decoder().value_or(AmxRowDecoder{nothing, nullptr, nullptr, nullptr}),
          amx_pair_decoder().value_or(AmxPairDecoder{nothing, nullptr, nullptr})};
}

}  // namespace nibble::matmul::emulated
