#include "core/text/text_pool.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace nibble::text_pool_test {
namespace {

TEST(TextPool, EqualTextsAreOne) {
  TextPool pool;
  std::vector<std::uint32_t> numbers;
  for (int i = 0; i < 1000; ++i) numbers.push_back(pool.add("text " + std::to_string(i % 300)));
  for (std::size_t i = 0; i < numbers.size(); ++i) EXPECT_EQ(pool[numbers[i]], "text " + std::to_string(i % 300));
  std::sort(numbers.begin(), numbers.end());
  // Most of them: a text that is hard to find may be stored again.
  EXPECT_LE(std::unique(numbers.begin(), numbers.end()) - numbers.begin(), 310);
}

}  // namespace
}  // namespace nibble::text_pool_test
