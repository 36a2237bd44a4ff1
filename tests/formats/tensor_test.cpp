#include "nibble/tensor.hpp"

#include <gtest/gtest.h>

#include "tests/support/corrupt.hpp"

namespace nibble::tensor_test {
namespace {

TEST(DTypes, FloatingPointNumbersAreCalledF) {
  for (const DTypeTraits& type : dtypes)
    EXPECT_EQ(is_floating_point(type.dtype), type.name.starts_with("F") || type.name == "BF16") << type.name;
}

TEST(Tensor, TableIsIndexedByType) {
  for (std::size_t i = 0; i < dtypes.size(); ++i) {
    EXPECT_EQ(static_cast<std::size_t>(dtypes[i].dtype), i);
    EXPECT_EQ(find_dtype(dtypes[i].name), dtypes[i].dtype);
  }
  EXPECT_EQ(find_dtype("f32"), std::nullopt);
}

TEST(Tensor, TypesAreFoundByTheNamesOfTorch) {
  for (const DTypeTraits& entry : dtypes) EXPECT_EQ(find_torch_dtype(entry.torch_name), entry.dtype);
  EXPECT_FALSE(find_torch_dtype("BF16"));
  EXPECT_FALSE(find_torch_dtype(""));
}

TEST(Tensor, ElementCount) {
  EXPECT_EQ(element_count(Shape{}), 1u);
  EXPECT_EQ(element_count({4096, 128}), 4096u * 128);
  EXPECT_EQ(element_count({3, 0, 5}), 0u);
  EXPECT_EQ(element_count({std::uint64_t{1} << 40, std::uint64_t{1} << 40, 0}), 0u);
  EXPECT_EQ(element_count({std::uint64_t{1} << 32, 0xFFFFFFFF}), 0xFFFFFFFF00000000);
  EXPECT_EQ(test::error_of([] {
              (void)element_count({std::uint64_t{1} << 32, std::uint64_t{1} << 32});
            }),
            "the elements of shape 4294967296 x 4294967296 exceed 64 bits");
}

TEST(Tensor, ByteCount) {
  EXPECT_EQ(byte_count(DType::f32, 3), 12u);
  EXPECT_EQ(byte_count(DType::boolean, 3), 3u);
  EXPECT_EQ(byte_count(DType::f4, 6), 3u);
  EXPECT_EQ(byte_count(DType::f6_e2m3, 4), 3u);
  EXPECT_EQ(test::error_of([] { (void)byte_count(DType::f4, 7); }), "7 elements of F4 are not a whole number of bytes");
  EXPECT_EQ(test::error_of([] { (void)byte_count(DType::u8, std::uint64_t{1} << 61); }),
            "2305843009213693952 elements of U8 exceed 64 bits");
}

TEST(Tensor, ShapesForPeople) {
  EXPECT_EQ(to_string(Shape{}), "scalar");
  EXPECT_EQ(to_string(Shape{5}), "5");
  EXPECT_EQ(to_string(Shape{4096, 128}), "4096 x 128");
  EXPECT_EQ(to_string(Shape(17, 1)),
            "1 x 1 x 1 x 1 x 1 x 1 x 1 x 1 x 1 x 1 x 1 x 1 x 1 x 1 x 1 x 1 x ... (17 dimensions)");
}

}  // namespace
}  // namespace nibble::tensor_test
