#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "quant/codecs/four_bit/four_bit.hpp"

namespace nibble {

inline constexpr std::size_t max_search_ratios = 36;

/// What to multiply the largest magnitude of a block by to get the numbers that a search tries.
[[nodiscard]] std::span<const float> search_ratios(std::size_t blocksize, AbsmaxChoice choice);

/// The same for blocks in which some weights count more than others. The largest weight may count little, and then it
/// is best clamped, so these numbers are spread evenly from about half of the smallest of search_ratios() to the
/// largest of them, with two that are still smaller.
class WeightedSearchRatios {
 public:
  WeightedSearchRatios(std::size_t blocksize, AbsmaxChoice choice);
  [[nodiscard]] std::span<const float> get() const noexcept { return std::span(ratios_).first(count_); }

 private:
  std::array<float, max_search_ratios> ratios_{};
  std::size_t count_ = 0;
};

}  // namespace nibble
