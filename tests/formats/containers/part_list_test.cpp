#include "formats/containers/part_list.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
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

// Cuts names in two, not all at the same position.
class CutNames final : public PartList {
 public:
  explicit CutNames(std::vector<std::string> names) : names_(std::move(names)) {}
  [[nodiscard]] std::size_t size() const noexcept override { return names_.size(); }
  [[nodiscard]] Name name(std::size_t part) const noexcept override {
    const std::string_view name = names_[part];
    return {name.substr(0, part % 3), name.substr(std::min(name.size(), part % 3))};
  }
  [[nodiscard]] DType dtype(std::size_t /*part*/) const noexcept override { return DType::f32; }
  [[nodiscard]] TensorInfo operator[](std::size_t part) const override { return {names_[part], DType::f32, {1}}; }

 private:
  std::vector<std::string> names_;
};

TEST(PartNames, FirstDuplicateIsThatWhoseSecondComesFirst) {
  EXPECT_EQ(find_duplicate(CutNames({})), std::nullopt);
  EXPECT_EQ(find_duplicate(CutNames({"abc", "ab", "abcd", "b"})), std::nullopt);
  EXPECT_EQ(find_duplicate(CutNames({"abc", "ab", "b", "ab", "abc", "ab"})), std::pair(std::size_t{1}, std::size_t{3}));
}

}  // namespace
}  // namespace nibble::part_list_test
