#include "formats/equal_tensors.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

#include "tests/support/memory_checkpoint.hpp"

namespace nibble::equal_tensors_test {
namespace {

TEST(EqualTensors, HaveTheSameTypeShapeAndBytes) {
  const std::vector<std::byte> bytes(3 << 19, std::byte{1});  // 1.5 MiB
  std::vector<std::byte> other_end = bytes, other_begin = bytes;
  other_end.back() = std::byte{2};
  other_begin.front() = std::byte{2};
  const Shape shape{3, 1 << 17};
  test::MemoryReader in;
  in.add({"a", DType::f32, shape}, bytes);
  in.add({"same", DType::f32, shape}, bytes);
  in.add({"end", DType::f32, shape}, other_end);
  in.add({"begin", DType::f32, shape}, other_begin);
  in.add({"shape", DType::f32, {shape[1], shape[0]}}, bytes);
  in.add({"type", DType::i32, shape}, bytes);
  in.add({"empty", DType::f32, {0}}, {});
  EXPECT_TRUE(are_equal(in, 0, 1));
  for (std::size_t other = 2; other < in.tensors().size(); ++other) EXPECT_FALSE(are_equal(in, 0, other)) << other;
  EXPECT_TRUE(are_equal(in, 6, 6));
}

}  // namespace
}  // namespace nibble::equal_tensors_test
