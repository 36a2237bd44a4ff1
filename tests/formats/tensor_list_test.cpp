#include "nibble/tensor_list.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "formats/models/names.hpp"

namespace nibble::tensor_list_test {
namespace {

const std::vector<TensorInfo> tensors{
    {"a.weight", DType::bf16, {2, 3}}, {"", DType::u64, {}}, {"b", DType::f4, {4, 0, 7}}, {"c", DType::f32, {5}}};

TEST(TensorList, GivesBackWhatItTook) {
  const TensorList list{std::span(tensors)};
  ASSERT_EQ(list.size(), tensors.size());
  EXPECT_TRUE(std::equal(list.begin(), list.end(), tensors.begin(), tensors.end()));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(list.name(i), tensors[i].name);
    EXPECT_EQ(list.bytes(i), tensors[i].bytes());
  }
}

TEST(TensorList, AppendsAnother) {
  TensorList list{std::span(tensors).first(2)};
  list.append(TensorList{std::span(tensors).subspan(2)});
  EXPECT_TRUE(std::equal(list.begin(), list.end(), tensors.begin(), tensors.end()));
  list.set_shape(0, std::vector<std::uint64_t>{3, 2});
  EXPECT_EQ(list[0].shape, (Shape{3, 2}));
  EXPECT_EQ(list[2], tensors[2]);
}

TEST(TextPool, EqualTextsAreOne) {
  TextPool pool;
  std::vector<std::uint32_t> numbers;
  for (int i = 0; i < 1000; ++i) numbers.push_back(pool.add("text " + std::to_string(i % 300)));
  for (std::size_t i = 0; i < numbers.size(); ++i) EXPECT_EQ(pool[numbers[i]], "text " + std::to_string(i % 300));
  std::sort(numbers.begin(), numbers.end());
  // Most of them: a text that is hard to find may be stored again.
  EXPECT_LE(std::unique(numbers.begin(), numbers.end()) - numbers.begin(), 310);
}

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
}  // namespace nibble::tensor_list_test
