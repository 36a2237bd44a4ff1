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

}  // namespace
}  // namespace nibble::tensor_list_test
