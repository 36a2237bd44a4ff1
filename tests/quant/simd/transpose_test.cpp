#include "quant/simd/transpose.hpp"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "tests/quant/codecs/codec_support.hpp"

namespace nibble::transpose_test {
namespace {

// Sizes around the squares of 16 bytes. What is behind a row of the target belongs to somebody else.
TEST(Transpose, ElementsChangePlaces) {
  std::mt19937 random(1);
  for (const std::size_t width : {2U, 4U, 8U})
    for (const std::size_t rows : {0U, 1U, 3U, 15U, 16U, 17U, 40U})
      for (const std::size_t columns : {0U, 1U, 3U, 15U, 16U, 17U, 40U}) {
        const std::size_t from_stride = columns + 3, to_stride = rows + 5;
        std::vector<std::byte> from(1 + rows * from_stride * width);
        for (std::byte& byte : from) byte = static_cast<std::byte>(random());
        std::vector<std::byte> expected(1 + columns * to_stride * width, std::byte{42});
        for (std::size_t r = 0; r < rows; ++r)
          for (std::size_t c = 0; c < columns; ++c)
            for (std::size_t b = 0; b < width; ++b)
              expected[1 + (c * to_stride + r) * width + b] = from[1 + (r * from_stride + c) * width + b];
        test::for_each_target([&](const std::string& target) {
          std::vector<std::byte> to(expected.size(), std::byte{42});
          transpose(from.data() + 1, from_stride, rows, columns, width, to.data() + 1, to_stride);
          ASSERT_EQ(to, expected) << rows << " x " << columns << " of " << width << " bytes, " << target;
        });
      }
}

}  // namespace
}  // namespace nibble::transpose_test
