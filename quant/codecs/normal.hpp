#pragma once

#include <cmath>
#include <numbers>

namespace nibble {

/// The mean of the largest of n squared numbers that are normally distributed, with variance 1: the mean of Gumbel's
/// distribution, to which theirs tends (Embrechts, Klueppelberg and Mikosch, "Modelling Extremal Events", 1997, table
/// 3.4.4). For n >= 16.
inline double mean_square_of_largest(double n) {
  return 2 * std::log(n) - std::log(std::log(n)) - std::log(std::numbers::pi) + 2 * std::numbers::egamma;
}

}  // namespace nibble
