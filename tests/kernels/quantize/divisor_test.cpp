#include "kernels/quantize/divisor.hpp"

#include <gtest/gtest.h>

#include <random>

namespace nibble::kernels {
namespace {

TEST(Divisor, DividesAsDivisionDoes) {
  std::mt19937_64 random(1);
  const auto any = [&random](u64 most) { return (random() >> random() % 48) % (most + 1); };
  std::vector<u64> divisors{1, 2, 3, 5, 7, 4095, 4096, 4097, Divisor::max - 1, Divisor::max};
  for (int i = 0; i < 1000; ++i) divisors.push_back(1 + any(Divisor::max - 1));
  for (const u64 divisor : divisors) {
    const Divisor by(divisor);
    const auto expect_right = [&](u64 n) { ASSERT_EQ(by.quotient(n), n / divisor) << n << " / " << divisor; };
    expect_right(0);
    expect_right(Divisor::max - 1);
    for (int i = 0; i < 200; ++i) {
      const u64 n = any(Divisor::max - 1), multiple = n / divisor * divisor;
      expect_right(n);
      expect_right(multiple);
      if (multiple > 0) expect_right(multiple - 1);
    }
  }
}

}  // namespace
}  // namespace nibble::kernels
