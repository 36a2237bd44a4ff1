#include "cli/terminal/sizes.hpp"

#include <gtest/gtest.h>

#include "nibble/error.hpp"
#include "tests/support/corrupt.hpp"

namespace nibble::cli::sizes_test {
namespace {

TEST(Sizes, ParsesDecimalAndBinaryUnits) {
  EXPECT_EQ(parse_size("--x", "5GB"), 5'000'000'000U);
  EXPECT_EQ(parse_size("--x", "5GiB"), 5ULL << 30U);
  EXPECT_EQ(parse_size("--x", "1.5 MB"), 1'500'000U);
  EXPECT_EQ(parse_size("--x", "300k"), 300'000U);
  EXPECT_EQ(parse_size("--x", "4096"), 4096U);
  EXPECT_EQ(parse_size("--x", "2tb"), 2'000'000'000'000U);
}

TEST(Sizes, RefusesWhatIsNone) {
  for (const char* const text : {"", "GB", "-1GB", "0", "5XB", "5GB5", "nan", "inf", "1e30GB"})
    EXPECT_EQ(test::error_of([&] { (void)parse_size("--x", text); }, Errc::usage),
              "--x '" + std::string(text) + "': not a size such as 5GB, 300MB or 4GiB");
}

}  // namespace
}  // namespace nibble::cli::sizes_test
