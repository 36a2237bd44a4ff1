#include "nibble/size_text.hpp"

#include <gtest/gtest.h>

namespace nibble::size_text_test {
namespace {

TEST(SizeText, HasDecimalAndBinaryUnits) {
  EXPECT_EQ(size_both(13'476'831'232), "13.48 GB (12.55 GiB)");
  EXPECT_EQ(size_short(2'048), "2.05 kB");
  EXPECT_EQ(size_short(1'500'000), "1.50 MB");
  EXPECT_EQ(size_short(3'000'000'000'000), "3.00 TB");
}

TEST(SizeText, SmallSizesAreBytes) {
  EXPECT_EQ(size_both(0), "0 bytes");
  EXPECT_EQ(size_both(999), "999 bytes");
  EXPECT_EQ(size_both(1000), "1.00 kB (1000 bytes)");
}

// What two decimals would round to 1000 has the next unit.
TEST(SizeText, NoNumberReachesTheNextUnit) {
  EXPECT_EQ(size_short(999'994), "999.99 kB");
  EXPECT_EQ(size_short(999'995), "1.00 MB");
  EXPECT_EQ(size_both((1 << 20) - 1), "1.05 MB (1.00 MiB)");
}

}  // namespace
}  // namespace nibble::size_text_test
