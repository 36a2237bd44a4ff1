#include "quant/quantizers/search/search_ratios.hpp"

#include <algorithm>
#include <array>
#include <bit>

namespace nibble {
namespace {

// In units of 1/64, by blocksize, as search_ratios.py prints them. The best of them, before it is refined, leaves at
// most 0.3 % more error than the best of all multiples of 1/64.
template <std::size_t n> using Table = std::array<std::array<std::int8_t, n>, blocksizes.size()>;

// clang-format off
constexpr Table<20> of_either_sign{{
    {-94, -88, -83, -71, -67, -64, -62, -59, -56, 54, 58, 61, 63, 65, 67, 69, 83, 86, 89, 93},  // 32
    {-85, -69, -66, -63, -61, -59, -57, -55, -51, 53, 56, 58, 60, 62, 64, 65, 67, 69, 85, 90},  // 64
    {-69, -66, -64, -62, -60, -59, -57, -55, -54, -48, 51, 53, 56, 58, 60, 61, 63, 64, 67, 70},  // 128
    {-66, -63, -61, -59, -58, -56, -54, -53, -50, -45, -42, 48, 52, 55, 57, 58, 60, 61, 63, 65},  // 256
    {-62, -59, -57, -55, -53, -51, -49, -47, -43, -40, -36, 45, 48, 50, 52, 54, 57, 59, 61, 64},  // 512
    {-60, -57, -54, -52, -50, -47, -45, -42, -36, -32, -27, 39, 41, 44, 46, 48, 51, 54, 56, 58},  // 1024
    {-56, -53, -50, -48, -45, -43, -40, -36, -34, -22, 27, 31, 37, 39, 42, 44, 47, 49, 51, 55},  // 2048
    {-51, -49, -47, -45, -42, -39, -37, -34, -24, -20, 28, 31, 33, 36, 38, 41, 44, 46, 48, 52},  // 4096
}};
constexpr Table<12> of_positive_sign{{
    {54, 57, 59, 60, 62, 64, 67, 70, 79, 83, 89, 95},  // 32
    {53, 56, 58, 59, 61, 63, 64, 66, 69, 79, 85, 90},  // 64
    {48, 50, 53, 55, 56, 58, 59, 61, 62, 64, 67, 70},  // 128
    {42, 45, 49, 52, 54, 55, 56, 58, 59, 61, 63, 65},  // 256
    {36, 40, 43, 45, 47, 49, 52, 55, 57, 59, 61, 64},  // 512
    {27, 32, 36, 39, 42, 44, 46, 48, 51, 54, 56, 58},  // 1024
    {22, 27, 31, 34, 37, 40, 42, 44, 47, 49, 51, 54},  // 2048
    {20, 24, 28, 31, 34, 36, 39, 41, 43, 45, 48, 52},  // 4096
}};
// clang-format on

template <std::size_t n> constexpr std::array<std::array<float, n>, blocksizes.size()> over_64(const Table<n>& table) {
  std::array<std::array<float, n>, blocksizes.size()> ratios{};
  for (std::size_t row = 0; row < table.size(); ++row)
    for (std::size_t i = 0; i < n; ++i) ratios[row][i] = static_cast<float>(table[row][i]) / 64;
  return ratios;
}
constexpr auto either = over_64(of_either_sign);
constexpr auto positive = over_64(of_positive_sign);

}  // namespace

std::span<const float> search_ratios(std::size_t blocksize, AbsmaxChoice choice) {
  const auto row = static_cast<std::size_t>(std::countr_zero(blocksize / min_blocksize));
  if (choice == AbsmaxChoice::search_positive) return positive.at(row);
  return either.at(row);
}

WeightedSearchRatios::WeightedSearchRatios(std::size_t blocksize, AbsmaxChoice choice) {
  const auto positives = search_ratios(blocksize, AbsmaxChoice::search_positive);
  const auto [least, greatest] = std::ranges::minmax(positives);
  constexpr int steps = 15;
  const auto add = [&](float ratio) {
    ratios_[count_++] = ratio;
    if (choice == AbsmaxChoice::search) ratios_[count_++] = -ratio;
  };
  for (const float share : {0.25f, 0.45f}) add(share * least);
  const float first = 0.65f * least;
  for (int i = 0; i <= steps; ++i) add(first + (greatest - first) * (static_cast<float>(i) / steps));
}

}  // namespace nibble
