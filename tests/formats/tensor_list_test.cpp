#include "nibble/tensor_list.hpp"

#include <gtest/gtest.h>

#include <algorithm>

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

}  // namespace
}  // namespace nibble::tensor_list_test
