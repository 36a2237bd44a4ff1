#pragma once

#include <cstddef>
#include <cstdint>

#include "quant/matmul/lines.hpp"
#include "quant/matmul/operands.hpp"

namespace nibble::matmul {

/// Writes n numbers of x, in fp32 or bf16 and without any alignment, as words in the order of a kernel.
using Arrange = void (*)(const void* x, std::size_t n, std::uint32_t* words);

/// The most numbers of x that are arranged: 1 MiB.
inline constexpr std::size_t max_arranged = std::size_t{1} << 18;

/// How a kernel has x: in one part, or in several that follow each other, each with words for all numbers.
struct Arrangement {
  std::size_t words_of_64;  ///< 32-bit words for 64 numbers of a part
  DType from;               ///< F32, or BF16 if x is
  Arrange arrange;          ///< from such numbers; null where the words are these numbers in their usual order
  std::size_t parts = 1;    ///< several only from BF16, of which `arrange` is given all numbers at once

  [[nodiscard]] constexpr std::size_t words(std::size_t numbers) const { return numbers * words_of_64 / 64; }
};
inline constexpr Arrangement in_fp32{64, DType::f32, nullptr};

/// All m rows of x, of `depth` numbers each.
[[nodiscard]] Lines<std::uint32_t> arranged(const Arrangement& arrangement, const Operands& operands,
                                            std::size_t depth);

}  // namespace nibble::matmul
