#include "core/memory/last_used.hpp"

#include <gtest/gtest.h>

namespace nibble::last_used_test {
namespace {

TEST(LastUsed, TheTwoThatWereUsedLastAreKept) {
  LastUsed<int> kept;
  int made = 0;
  const auto get = [&](std::size_t key) { return *kept.get(key, [&] { return std::make_shared<const int>(++made); }); };
  EXPECT_EQ(get(5), 1);
  EXPECT_EQ(get(6), 2);
  EXPECT_EQ(get(5), 1);
  EXPECT_EQ(get(7), 3);  // instead of 6
  EXPECT_EQ(get(5), 1);
  EXPECT_EQ(get(6), 4);
}

}  // namespace
}  // namespace nibble::last_used_test
