#include "core/checked.hpp"

#include <gtest/gtest.h>

#include "tests/support/corrupt.hpp"

namespace nibble::checked_test {
namespace {

constexpr std::uint64_t largest = ~std::uint64_t{0};

TEST(Checked, ResultsThatFitAreExact) {
  EXPECT_EQ((Checked(largest - 1) + 1).value(), largest);
  EXPECT_EQ((Checked(largest) - largest).value(), 0u);
  EXPECT_EQ((Checked(0xFFFFFFFF) * 0x100000001).value(), largest);
  EXPECT_EQ((Checked(0) * largest).value(), 0u);
}

TEST(Checked, ResultsThatDoNotAreInvalid) {
  EXPECT_FALSE((Checked(largest) + 1).valid());
  EXPECT_FALSE((Checked(0) - 1).valid());
  EXPECT_FALSE((Checked(std::uint64_t{1} << 32) * (std::uint64_t{1} << 32)).valid());
}

TEST(Checked, InvalidStaysInvalid) {
  const Checked invalid = Checked(largest) + 1;
  EXPECT_FALSE((invalid * 0).valid());
  EXPECT_FALSE((Checked(0) * invalid).valid());
  EXPECT_FALSE((invalid - 1).valid());
  EXPECT_FALSE((invalid + 0).valid());
}

TEST(Checked, ValueOfInvalidThrows) {
  EXPECT_EQ(test::error_of([] { (void)(Checked(largest) + 1).value(); }), "a size exceeds 64 bits");
}

}  // namespace
}  // namespace nibble::checked_test
