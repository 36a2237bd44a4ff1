#include "core/text/size_text.hpp"

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

// Where one is too large for the other, both must not read the same.
TEST(SizeText, SizesThatLookAlikeAreToldApartByTheirBytes) {
  using Texts = std::pair<std::string, std::string>;
  EXPECT_EQ(told_apart(15'680'065, 15'680'064, size_short), Texts("15680065 bytes", "15680064 bytes"));
  EXPECT_EQ(told_apart(16'680'064, 15'680'064, size_short), Texts("16.68 MB", "15.68 MB"));
  EXPECT_EQ(told_apart(2'000'000, 1'000'000, size_both), Texts("2.00 MB (1.91 MiB)", "1.00 MB (976.56 KiB)"));
}

}  // namespace
}  // namespace nibble::size_text_test
