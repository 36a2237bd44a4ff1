#include "nibble/fp4.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace nibble::fp4_test {
namespace {

TEST(Fp4, BothZerosAndTheirNeighboursHaveTheCodesOfBitsandbytes) {
  // Of two neighbours in ascending order, 9 0 8 1, a tie takes the first.
  const float tie = 0.0625f / 12 / 2;
  std::vector<float> weights{1.0f, -1.0f, 0.0f, -0.0f, 1e-9f, -1e-9f, tie, -tie, 2 * tie, -2 * tie, 0.5f};
  std::vector<std::uint8_t> packed(6);
  std::vector<float> absmax(1);
  fp4::encode(weights, 64, packed, absmax);
  EXPECT_EQ(packed, (std::vector<std::uint8_t>{0x3B, 0x00, 0x80, 0x89, 0x19, 0x50}));
}

TEST(Fp4, ValuesAreTheTwelfthsOfBitsandbytes) {
  const std::vector<float> expected{0, 0.0052083335f, 0.6666667f, 1, 0.33333334f, 0.5f, 0.16666667f, 0.25f};
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(fp4::codebook.value[i], expected[i]);
    EXPECT_EQ(fp4::codebook.value[i + 8], -expected[i]);
  }
}

}  // namespace
}  // namespace nibble::fp4_test
