#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "nibble/tensor.hpp"

/// Numbers as sums of numbers in bf16, their terms: the first term is the number, rounded, and each further one is what
/// the terms before leave, rounded.
namespace nibble::matmul {

inline constexpr std::size_t max_terms = 3;

/// How many terms together are exactly a number of that type, if no term is subnormal.
[[nodiscard]] constexpr std::size_t terms_of(DType dtype) {
  return dtype == DType::bf16 ? 1 : dtype == DType::f16 ? 2 : max_terms;
}

/// AMX tiles take subnormal terms as 0. What that takes from a number of this magnitude or more is at most 2^-24 of it.
inline constexpr float least_of_terms = 0x1p-102f;

/// Writes the next term of every number, and subtracts it from the number. Where a term is infinite, the number becomes
/// infinite or NaN.
void take_term(std::span<float> numbers, std::span<std::uint16_t> term);

}  // namespace nibble::matmul
