#include "quant/quantizers/search/search_values.hpp"

#include <gtest/gtest.h>

#include "tests/quant/quantizers/search/search_support.hpp"

namespace nibble::search_values_test {
namespace {

// For every y, although ScaleSearch on a few blocks meets a part of them.
TEST(SearchValues, BucketsHaveTheValuesOfTheNumbers) {
  for (const char* const name : {"nf4", "fp4"}) {
    const FourBitTables& tables = test::four_bit_tables(name);
    const SearchValues values(tables);
    for (int y = -SearchValues::end; y < SearchValues::end; ++y) {
      const int sum = y + values.bucket[static_cast<std::size_t>(y >> 8 & 31)];
      EXPECT_EQ(values.value[static_cast<std::size_t>(sum >> 8 & 31)], values.of(SearchValues::number(tables, y)))
          << name << y;
    }
  }
}

}  // namespace
}  // namespace nibble::search_values_test
