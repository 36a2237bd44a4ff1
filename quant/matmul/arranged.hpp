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

/// All m rows of x, of `depth` numbers each: as fp32 numbers (per_word is 1) or as pairs of bf16 (2, for x in bf16), in
/// their usual order if `arrange` is null.
[[nodiscard]] Lines<std::uint32_t> arranged(std::size_t per_word, Arrange arrange, const Operands& operands,
                                            std::size_t depth);

}  // namespace nibble::matmul
