// Errors that others have published for these formats, of normal weights, as compare() has them.

#include <gtest/gtest.h>

#include <cmath>

#include "nibble/metrics.hpp"
#include "quant/codecs/four_bit/four_bit.hpp"
#include "tests/quant/codecs/codec_support.hpp"

namespace nibble::published_error_test {
namespace {

constexpr std::size_t count = std::size_t{1} << 22;

const std::vector<float>& weights() {
  static const std::vector<float> normal = test::normal_weights(count, 7);
  return normal;
}

ErrorStats error_of(const CodecSpec& codec) {
  return compare(weights(), test::round_trip(*make_codec(codec), weights(), {1024, count / 1024}));
}

// bitsandbytes tells mean and standard deviation of these over 200 draws of 2^20 weights. Four times as many weights,
// as here, have half the standard deviation; four of those, and what rounding took from the table, are allowed.
struct Published {
  std::uint32_t blocksize;
  double nf4_mae, nf4_std, nf4_rel, fp4_mae, fp4_rel;
  double nf4_rmse, nf4_db, fp4_rmse, fp4_db;  // computed from 4.2 million weights by numpy
};
constexpr Published published[] = {
    {32, 0.067746, 69e-6, 0.189726, 0.088925, 0.242443, 0.08730, 21.18, 0.11416, 18.85},
    {64, 0.072798, 74e-6, 0.203339, 0.096543, 0.260125, 0.09195, 20.73, 0.12196, 18.27},
    {128, 0.076831, 91e-6, 0.215237, 0.102969, 0.275817, 0.09559, 20.39, 0.12866, 17.81},
    {256, 0.080337, 102e-6, 0.226105, 0.108684, 0.289831, 0.09867, 20.12, 0.13469, 17.41},
    {512, 0.083547, 143e-6, 0.236079, 0.114115, 0.302881, 0.10150, 19.87, 0.14041, 17.05},
    {1024, 0.086610, 187e-6, 0.245370, 0.119333, 0.315000, 0.10422, 19.64, 0.14611, 16.71},
    {2048, 0.089592, 251e-6, 0.254163, 0.124556, 0.326607, 0.10697, 19.41, 0.15174, 16.38},
    {4096, 0.092547, 360e-6, 0.262473, 0.129536, 0.337169, 0.10983, 19.18, 0.15752, 16.05},
};

class PublishedErrors : public testing::TestWithParam<Published> {
 protected:
  // What a figure may be off, as a share of it: the standard deviation of all of them comes from that of the absmax.
  static double allowed() { return 4 * (GetParam().nf4_std / 2) / GetParam().nf4_mae; }

  static void expect(const ErrorStats& stats, double mae, double relative, double rmse, double db) {
    EXPECT_NEAR(stats.mae(), mae, allowed() * mae + 1e-6);
    // Of values in [0, 1], so that the standard deviation of the mean is at most half over the root of their number.
    EXPECT_NEAR(stats.mean_rel(), relative, allowed() * relative + 4 * 0.5 / std::sqrt(static_cast<double>(count)));
    // Two draws differ by the root of 2 more than a draw from the mean.
    EXPECT_NEAR(stats.rmse(), rmse, std::sqrt(2.0) * allowed() * rmse + 1e-5);
    EXPECT_NEAR(stats.sqnr_db(), db, std::sqrt(2.0) * allowed() * 20 / std::log(10.0) + 0.01);
  }
};

TEST_P(PublishedErrors, OfNf4AndFp4) {
  const Published& row = GetParam();
  const CodecSpec nf4 = four_bit_spec("nf4", row.blocksize, false), fp4 = four_bit_spec("fp4", row.blocksize, false);
  {
    SCOPED_TRACE("nf4");
    expect(error_of(nf4), row.nf4_mae, row.nf4_rel, row.nf4_rmse, row.nf4_db);
    EXPECT_EQ(make_codec(nf4)->normal_sqnr_db({}), row.nf4_db);
  }
  SCOPED_TRACE("fp4");
  expect(error_of(fp4), row.fp4_mae, row.fp4_rel, row.fp4_rmse, row.fp4_db);
  EXPECT_EQ(make_codec(fp4)->normal_sqnr_db({}), row.fp4_db);
}

// What a search expects of normal weights, and what it finds, with double quantization. It takes long under an
// emulator, so it gets an eighth of the weights.
TEST_P(PublishedErrors, OfSearches) {
  const std::vector<float> some(weights().begin(), weights().begin() + count / 8);
  for (const char* const name : {"nf4", "fp4"})
    for (const char* const choice : {"search", "search-positive"}) {
      const CodecSpec codec = four_bit_spec(name, GetParam().blocksize, true).with("absmax", choice);
      const ErrorStats stats = compare(some, test::round_trip(*make_codec(codec), some, {1024, some.size() / 1024}));
      EXPECT_NEAR(stats.sqnr_db(), make_codec(codec)->normal_sqnr_db({}), 0.08) << codec.text();
    }
}

INSTANTIATE_TEST_SUITE_P(Blocksizes, PublishedErrors, testing::ValuesIn(published),
                         [](const auto& each) { return std::to_string(each.param.blocksize); });

TEST(PublishedError, CastsHaveTheSqnrThatIsExpected) {
  for (const char* const codec : {"bf16", "fp16"})
    EXPECT_NEAR(error_of(codec).sqnr_db(), make_codec(codec)->normal_sqnr_db({}), 0.06) << codec;
  for (const char* const codec : {"fp32", "keep"}) EXPECT_TRUE(std::isinf(make_codec(codec)->normal_sqnr_db({})));
}

TEST(PublishedError, CosinesAtBlockSize64) {
  EXPECT_NEAR(error_of("nf4:double-quant=no").cosine(), 0.99577, 2e-5);
  EXPECT_NEAR(error_of("fp4:double-quant=no").cosine(), 0.99258, 4e-5);
}

// 0.07284 instead of 0.07277 for the same draw, by numpy: a thousandth, give or take the rounding of those two.
TEST(PublishedError, DoubleQuantizationAddsAThousandth) {
  const auto added = [](const char* codec) {
    return error_of(codec).mae() / error_of(CodecSpec(codec).with("double-quant", "no")).mae() - 1;
  };
  EXPECT_NEAR(added("nf4"), 0.07284 / 0.07277 - 1, 2 * 0.5e-5 / 0.07277);
  EXPECT_GT(added("fp4"), 0);
  EXPECT_LT(added("fp4"), 0.0012);
}

// Half the widest gap between two neighbours of NF4 is the largest error there can be, for an absmax of 1.
TEST(PublishedError, NoErrorExceedsHalfTheWidestGap) {
  const ErrorStats stats = error_of("nf4:double-quant=no");
  EXPECT_LE(stats.max_abs, 0.1520 * describe(weights(), 0).absmax_max);
  EXPECT_GT(stats.max_abs, 0.1 * describe(weights(), 0).absmax_mean());
}

// ---- LLM.int8() ------------------------------------------------------------------------------------------------

// Rows of normal weights through int8.
ErrorStats int8_error(const std::vector<float>& matrix, std::size_t columns) {
  return compare(matrix, test::round_trip(*make_codec("int8"), matrix, {matrix.size() / columns, columns}));
}

std::vector<float> rows_of(std::size_t columns) {
  return {weights().begin(), weights().begin() + static_cast<std::ptrdiff_t>(count / columns * columns)};
}

TEST(PublishedError, Int8ByTheLengthOfRows) {
  struct Row {
    std::size_t columns;
    double rmse, db;
  };
  for (const auto& [columns, rmse, db] :
       {Row{1024, 0.00793, 42.0}, Row{4096, 0.00873, 41.2}, Row{11008, 0.00919, 40.7}}) {
    const ErrorStats stats = int8_error(rows_of(columns), columns);
    // An absmax varies by a tenth, and a draw has this many of them.
    const double allowed =
        4 * std::sqrt(2.0) * 0.1 / std::sqrt(static_cast<double>(count) / static_cast<double>(columns));
    EXPECT_NEAR(stats.rmse(), rmse, allowed * rmse + 1e-5) << columns;
    EXPECT_NEAR(stats.sqnr_db(), db, allowed * 20 / std::log(10.0) + 0.05) << columns;
  }
  EXPECT_NEAR(int8_error(rows_of(64), 64).cosine(), 0.999982, 2e-6);
}

// Why LLM.int8() keeps outliers apart: 7 columns of 4096 that are 20 times as large cost all others half of their bits.
TEST(PublishedError, SevenOutlierColumnsCostTheOthersTwentyDecibels) {
  constexpr std::size_t columns = 4096;
  const auto is_outlier = [](std::size_t i) { return i % columns % 600 == 100; };
  std::vector<float> matrix = rows_of(columns);
  std::size_t outliers = 0;
  for (std::size_t i = 0; i < matrix.size(); ++i)
    if (is_outlier(i)) {
      matrix[i] *= 20;
      outliers += i < columns ? 1 : 0;
    }
  ASSERT_EQ(outliers, 7U);
  const auto ordinary = [&](const std::vector<float>& of) {
    std::vector<float> rest;
    for (std::size_t i = 0; i < of.size(); ++i)
      if (!is_outlier(i)) rest.push_back(of[i]);
    return rest;
  };
  const std::vector<float> decoded = test::round_trip(*make_codec("int8"), matrix, {matrix.size() / columns, columns});
  EXPECT_NEAR(compare(ordinary(matrix), ordinary(decoded)).sqnr_db(), 21.7, 0.3);
  const std::vector<float> rest = ordinary(matrix);
  EXPECT_NEAR(int8_error(rest, columns - outliers).sqnr_db(), 41.2, 0.2);
}

}  // namespace
}  // namespace nibble::published_error_test
