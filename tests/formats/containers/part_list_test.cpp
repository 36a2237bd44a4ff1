#include "formats/containers/part_list.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::part_list_test {
namespace {

// However names are cut in two, they order as the whole names do.
TEST(PartNames, OrderAsWholeNames) {
  const std::vector<std::string> names{"", "a", "a.absmax", "a.b", "ab", "b", "ba", "\xC3\xA9"};
  for (const std::string& a : names)
    for (const std::string& b : names)
      for (std::size_t i = 0; i <= a.size(); ++i)
        for (std::size_t j = 0; j <= b.size(); ++j) {
          const std::string_view left = a, right = b;
          EXPECT_EQ(is_before({left.substr(0, i), left.substr(i)}, {right.substr(0, j), right.substr(j)}), a < b)
              << a << " " << b << " " << i << " " << j;
        }
}

}  // namespace
}  // namespace nibble::part_list_test
