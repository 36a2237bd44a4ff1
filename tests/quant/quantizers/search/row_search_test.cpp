// The search of an int8 row against trying many more scales, and what becomes of the rows of a matrix.
#include "quant/quantizers/search/row_search.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "nibble/int8.hpp"
#include "nibble/metrics.hpp"
#include "tests/quant/codecs/codec_support.hpp"

namespace nibble::row_search_test {
namespace {

using test::bytes_of;
using test::values_of;

float largest_of(const std::vector<float>& row) {
  bool plain = true;
  return int8::row_absmax(DType::f32, bytes_of(row), plain);
}

// `squares` are the mean squares of the columns; empty: they count alike.
double error_of(const std::vector<float>& row, double absmax, const std::vector<float>& squares = {}) {
  double sum = 0;
  for (std::size_t i = 0; i < row.size(); ++i) {
    const double code = std::clamp(std::nearbyint(row[i] / absmax * 127), -127.0, 127.0);
    const double error = row[i] - code * absmax / 127;
    sum += squares.empty() ? error * error : squares[i] * error * error;
  }
  return sum;
}

std::vector<float> mean_squares(std::size_t columns) {
  std::vector<float> squares = test::normal_weights(columns, 23);
  for (float& square : squares) square = std::exp(square);
  return squares;
}

// Normal weights, some with an outlier, some with heavy tails.
std::vector<float> row_of(std::size_t n, unsigned seed) {
  std::vector<float> row = test::normal_weights(n, seed, 0.05f);
  if (seed % 3 == 1) row[n / 2] = -3;
  if (seed % 3 == 2)
    for (float& weight : row) weight *= 1 + 400 * weight * weight;
  for (float& weight : row) weight = fp16::to_float(fp16::from_float(weight));
  return row;
}

TEST(RowSearch, LeavesNearlyTheLeastErrorOfAllScales) {
  for (const std::size_t n : {384U, 1024U, 5000U, 16384U}) {
    double found = 0, least = 0, of_largest = 0;
    for (unsigned seed = 0; seed < 9; ++seed) {
      const std::vector<float> row = row_of(n, seed);
      const float largest = largest_of(row);
      double best = std::numeric_limits<double>::infinity();
      for (int i = 0; i < 300; ++i) best = std::min(best, error_of(row, largest * (0.5 + i * (0.53 / 300))));
      const double scale = error_of(row, largest);  // so that every row counts as much
      found += error_of(row, search_row(DType::f32, bytes_of(row), largest)) / scale;
      least += best / scale;
      of_largest += 1;
    }
    EXPECT_LE(std::sqrt(found / least), 1.003) << n;
    EXPECT_LE(std::sqrt(found / of_largest), 0.995) << n;
  }
}

TEST(RowSearch, LeavesNearlyTheLeastWeightedError) {
  for (const std::size_t n : {384U, 5000U}) {
    const std::vector<float> squares = mean_squares(n);
    const ColumnWeights columns(squares);
    double found = 0, least = 0, of_unweighted = 0;
    for (unsigned seed = 0; seed < 6; ++seed) {
      const std::vector<float> row = row_of(n, seed);
      const float largest = largest_of(row);
      double best = std::numeric_limits<double>::infinity();
      for (int i = 0; i < 300; ++i) best = std::min(best, error_of(row, largest * (0.5 + i * (0.53 / 300)), squares));
      const double scale = error_of(row, largest, squares);
      found += error_of(row, search_row(DType::f32, bytes_of(row), largest, columns), squares) / scale;
      of_unweighted += error_of(row, search_row(DType::f32, bytes_of(row), largest), squares) / scale;
      least += best / scale;
    }
    EXPECT_LE(std::sqrt(found / least), 1.005) << n;
    EXPECT_LT(found, of_unweighted) << n;
  }
}

TEST(RowSearch, IsTheSameForAllTypesOnAllTargets) {
  for (const DType dtype : {DType::f32, DType::f16, DType::f64}) {
    const std::vector<float> row = row_of(5000, 2);
    for (const ColumnWeights& columns : {ColumnWeights(), ColumnWeights(mean_squares(5000))}) {
      const float expected = search_row(DType::f32, bytes_of(row), largest_of(row), columns);
      EXPECT_LT(expected, largest_of(row));
      test::for_each_target([&](const std::string& target) {
        EXPECT_EQ(search_row(dtype, test::stored_as(dtype, row), largest_of(row), columns), expected) << target;
      });
    }
  }
}

// Fewer weights than fp32 compares at a time, and magnitudes whose squares it cannot hold.
TEST(RowSearch, TakesRowsOfAnyKind) {
  EXPECT_EQ(search_row(DType::f32, bytes_of(std::vector<float>(100)), 0), 0);
  for (const float scale : {1e-6f, 1.0f, 60000.0f}) {
    std::vector<float> row{0.31f, -1.0f, 0.77f, 0.013f, -0.52f};
    for (float& weight : row) weight = fp16::to_float(fp16::from_float(weight * scale));
    const float found = search_row(DType::f32, bytes_of(row), largest_of(row));
    EXPECT_LT(error_of(row, found), error_of(row, largest_of(row)));
  }
}

class SearchOfRows : public testing::Test {
 protected:
  const std::unique_ptr<const Codec> codec_ = make_codec("int8:absmax=search");
};

TEST_F(SearchOfRows, ClampsWhatIsBeyondAbsmax) {
  std::vector<float> weights = test::normal_weights(4 * 16384, 3);
  for (std::size_t row = 0; row < 4; ++row) weights[row * 16384 + 77] = row % 2 == 0 ? -9.0f : 9.0f;
  const TensorInfo tensor{"w", DType::f32, {4, 16384}};
  const test::Encoded encoded = test::encode(*codec_, tensor, bytes_of(weights));
  const auto codes = values_of<std::int8_t>(encoded.planes.at(0));
  for (std::size_t row = 0; row < 4; ++row) {
    EXPECT_LT(values_of<float>(encoded.planes.at(1))[row], 9);
    EXPECT_EQ(codes[row * 16384 + 77], row % 2 == 0 ? -127 : 127);
  }
}

TEST_F(SearchOfRows, RowsThatAreNotFiniteKeepTheirLargestMagnitude) {
  std::vector<float> weights = test::normal_weights(3 * 16384, 3);
  weights[16384] = std::numeric_limits<float>::quiet_NaN();
  const TensorInfo tensor{"w", DType::f32, {3, 16384}};
  const auto absmax = values_of<float>(test::encode(*codec_, tensor, bytes_of(weights)).planes.at(1));
  const auto largest = values_of<float>(test::encode(*make_codec("int8"), tensor, bytes_of(weights)).planes.at(1));
  EXPECT_LT(absmax[0], largest[0]);
  EXPECT_EQ(absmax[1], largest[1]);
  EXPECT_LT(absmax[2], largest[2]);
}

TEST_F(SearchOfRows, WeighsTheColumns) {
  const std::vector<float> weights = test::normal_weights(3 * 5000, 3);
  const TensorInfo tensor{"w", DType::f32, {3, 5000}};
  const ColumnWeights columns(mean_squares(5000));
  const auto absmax = values_of<float>(
      test::encode(*codec_, tensor, bytes_of(weights), {.order = test::backwards, .columns = columns}).planes.at(1));
  for (std::size_t r = 0; r < 3; ++r) {
    const std::vector<float> row(weights.begin() + static_cast<std::ptrdiff_t>(5000 * r),
                                 weights.begin() + static_cast<std::ptrdiff_t>(5000 * (r + 1)));
    EXPECT_EQ(absmax[r], search_row(DType::f32, bytes_of(row), largest_of(row), columns));
    EXPECT_NE(absmax[r], search_row(DType::f32, bytes_of(row), largest_of(row)));
  }
}

TEST_F(SearchOfRows, ChunksAreWholeRows) {
  const auto quantizer = make_quantizer(*codec_);
  const TensorInfo tensor{"w", DType::f32, {100, 5000}};
  EXPECT_EQ(quantizer->chunking(tensor, 4096).weights, 5000U);
  EXPECT_FALSE(quantizer->chunking(tensor, 4096).scan);
  EXPECT_EQ(quantizer->scan_bytes(tensor), 0U);
  EXPECT_FALSE(quantizer->uses_device(tensor));
}

}  // namespace
}  // namespace nibble::row_search_test
