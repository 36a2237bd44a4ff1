#include "quant/jobs/measure/outlier_columns.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace nibble::outlier_columns_test {
namespace {

TEST(OutlierColumns, EnergyIsSummedUpFromAnyColumnOn) {
  const std::vector<float> weights{3, 4, 1, 2, 3, 4, 1, 2};
  std::vector<float> energy{0, 0, 0, 1};
  add_column_energy(weights, 2, true, energy);  // 3 and 4 end a row, and the last two begin one
  EXPECT_EQ(energy, (std::vector<float>{1 + 1, 4 + 4, 9 + 9, 16 + 16 + 1}));
}

TEST(OutlierColumns, EnergyLeavesOutWhatIsNotFinite) {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  std::vector<float> energy(2);
  add_column_energy(std::vector<float>{nan, 2, 1, -infinity, 1, 1}, 0, false, energy);
  EXPECT_EQ(energy, (std::vector<float>{2, 5}));
}

TEST(OutlierColumns, AreSixTimesTheMedian) {
  const OutlierColumns found = find_outliers(std::vector<double>{1, 35, 1, 36, 1, 1});
  EXPECT_EQ(found.count, 1U);
  EXPECT_EQ(found.energy, 36.0 / 75);
}

TEST(OutlierColumns, NoneStandOutOfZeros) {
  const OutlierColumns found = find_outliers(std::vector<double>{0, 0, 0, 9});
  EXPECT_EQ(found.count, 0U);
  EXPECT_EQ(found.energy, 0);
  EXPECT_EQ(find_outliers(std::vector<double>{0}).energy, 0);
}

TEST(OutlierColumns, EnergyHasToFitFp32) {
  EXPECT_TRUE(has_column_energy(0));
  EXPECT_TRUE(has_column_energy(1e-15f));
  EXPECT_TRUE(has_column_energy(1e15f));
  EXPECT_FALSE(has_column_energy(0.9e-15f));
  EXPECT_FALSE(has_column_energy(1.1e15f));
}

}  // namespace
}  // namespace nibble::outlier_columns_test
