#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "nibble/error_sums.hpp"
#include "quant/simd/lanes.hpp"

namespace nibble {

/// Sums over at most 4096 weights w and the weights t that stand for them, e = t - w, in fp32: the 16 lanes of
/// quant/simd/lanes-inl.hpp, each folded into four.
struct Squares {
  alignas(16) float square[4], reference[4], test[4];
};

/// Weights whose squares are added at a time.
inline constexpr std::size_t squares_step = 32;

/// Adds the lanes to `sums` in fp64. `count` is the number of weights without padding.
inline void add_squares_of_lanes(const Squares& lanes, std::uint64_t count, ErrorSums& sums) {
  sums.count += count;
  sums.square += sum_of_lanes(lanes.square);
  sums.reference += sum_of_lanes(lanes.reference);
  sums.test += sum_of_lanes(lanes.test);
  sums.product = (sums.reference + sums.test - sums.square) / 2;  // as e = t - w
}

// Sums of squares between these lose nothing to the range of fp32: the squares of a tile that are too small for it add
// up to at most 4096 x 1e-38, and no sum of a lane overflows unnoticed.
inline constexpr double min_sum = 1e-25;
inline constexpr double max_sum = 1e30;

inline bool is_usable(double sum) { return sum >= min_sum && sum <= max_sum; }  // not NaN either

/// Whether fp32 could hold all squares and the product follows from them: where t is much smaller than w, nearly all
/// digits of (sum w^2 + sum t^2 - sum e^2) cancel. Also false if a weight is not finite.
inline bool are_usable(const ErrorSums& sums) {
  return is_usable(sums.reference) && is_usable(sums.test) && (is_usable(sums.square) || sums.square == 0) &&
         sums.product > (sums.reference + sums.test) / 16;
}

/// Only the sums of compare(), for up to 4096 weights, in less time.
[[nodiscard]] ErrorSums compare_squares(std::span<const float> reference, std::span<const float> test);

/// sums[i] += weights[i]^2. Throws Error(usage) if the sizes differ.
void add_squares(std::span<const float> weights, std::span<float> sums);

}  // namespace nibble
