#include "quant/quantizers/compensation/row_group.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "quant/quantizers/search/search_ratios.hpp"
#include "tests/quant/codecs/codec_support.hpp"

namespace nibble::row_group_test {
namespace {

using row_group::OfRows;
constexpr std::size_t rows = row_group::rows, columns = 64;

const FourBitTables& nf4() {
  static const auto codec = make_codec("nf4");
  return dynamic_cast<const FourBitCodec&>(*codec).tables();
}

double error_for(const float* weights, std::size_t row, double absmax) {
  double error = 0;
  for (std::size_t c = 0; c < columns; ++c) {
    double least = std::numeric_limits<double>::infinity();
    for (const float value : nf4().codebook)
      least = std::min(least, std::abs(weights[c * rows + row] - absmax * value));
    error += least * least;
  }
  return error;
}

// Trying all multiples of 1/128 of the largest magnitude. The search leaves 1.0037 times as much squared error, without
// its last step 1.0044 times.
TEST(RowGroup, SearchesTheAbsmaxOfLeastError) {
  const std::vector<float> weights = test::normal_weights(4 * rows * columns, 31), alike(columns, 1.0f);
  const row_group::FourBitGrid grid(nf4());
  double found = 0, least = 0;
  for (std::size_t group = 0; group < 4; ++group) {
    const float* const w = weights.data() + group * rows * columns;
    const OfRows largest = row_group::largest_magnitudes(w, columns);
    const OfRows absmax =
        row_group::search_absmax(grid, w, columns, alike.data(), largest, search_ratios(columns, AbsmaxChoice::search));
    const OfRows gains = row_group::gains(grid, w, columns, alike.data(), largest, absmax);
    for (std::size_t r = 0; r < rows; ++r) {
      double best = std::numeric_limits<double>::infinity(), square = 0;
      for (int step = -200; step <= 200; ++step)
        if (step != 0) best = std::min(best, error_for(w, r, largest[r] * static_cast<double>(step) / 128));
      for (std::size_t c = 0; c < columns; ++c) square += std::pow(static_cast<double>(w[c * rows + r]), 2);
      const double error = error_for(w, r, absmax[r]);
      EXPECT_NEAR(gains[r] * largest[r] * largest[r], square - error, 1e-5 * square);
      found += error;
      least += best;
    }
  }
  EXPECT_LE(found, 1.004 * least);
}

// As encode_four_bit_for().
TEST(RowGroup, AnAbsmaxOfZeroGetsTheCodeOfZero) {
  const std::vector<float> original(rows, 0.5f), passed_on(columns);
  std::vector<float> weights = original, difference(rows);
  std::vector<std::uint8_t> codes(rows);
  row_group::quantize(row_group::FourBitGrid(nf4()), OfRows{},
                      {1, original.data(), passed_on.data(), weights.data(), difference.data(), codes.data()});
  EXPECT_EQ(codes, std::vector<std::uint8_t>(rows, 7));
  EXPECT_EQ(difference, std::vector<float>(rows, -0.5f));
}

TEST(RowGroup, TooLargeOrTooSmallWeightsAreNotSearched) {
  const std::vector<float> alike(columns, 1.0f);
  std::vector<float> weights(rows * columns);
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = i % rows < 8 ? 1e-38f : 1e32f;
  const OfRows largest = row_group::largest_magnitudes(weights.data(), columns);
  const OfRows absmax = row_group::search_absmax(row_group::FourBitGrid(nf4()), weights.data(), columns, alike.data(),
                                                 largest, search_ratios(columns, AbsmaxChoice::search));
  EXPECT_EQ(absmax, largest);
  weights[5] = std::numeric_limits<float>::quiet_NaN();
  weights[rows + 9] = -std::numeric_limits<float>::infinity();
  const OfRows damaged = row_group::largest_magnitudes(weights.data(), columns);
  EXPECT_TRUE(std::isnan(damaged[5]));
  EXPECT_EQ(damaged[9], std::numeric_limits<float>::infinity());
}

}  // namespace
}  // namespace nibble::row_group_test
