// How tensors that stay as they are, of any type, are cut.

#include <gtest/gtest.h>

#include <cstdint>

#include "quant/quantizers/quantizer.hpp"
#include "tests/quant/codecs/codec_support.hpp"

namespace nibble::keep_quantizer_test {
namespace {

// Types of 4 and of 6 bits share bytes, which a cut between them would split.
TEST(KeepQuantizer, ChunksAreWholeBytesOfEveryType) {
  const auto codec = make_codec("keep");
  const auto quantizer = make_quantizer(*codec);
  for (const DTypeTraits& type : dtypes) {
    const TensorInfo tensor{"t", type.dtype, {1000}};
    for (const std::uint64_t limit : {0U, 1U, 7U, 8U, 9U, 17U, 999U}) {
      const std::uint64_t weights = quantizer->chunking(tensor, limit).weights;
      EXPECT_EQ(weights * type.bits % 8, 0U) << type.name << ' ' << limit;
      EXPECT_GE(weights, 8U);
      EXPECT_LE(weights, std::max<std::uint64_t>(limit, 8));
    }
  }
}

TEST(KeepQuantizer, CutBytesAreThoseOfTheWhole) {
  const auto codec = make_codec("keep");
  for (const DTypeTraits& type : dtypes) {
    const TensorInfo tensor{"t", type.dtype, {104}};
    test::Bytes bytes(tensor.bytes());
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 37 + 11);
    EXPECT_EQ(test::encode(*codec, tensor, bytes, {.limit = 17, .order = test::backwards}).planes[0], bytes)
        << type.name;
  }
}

}  // namespace
}  // namespace nibble::keep_quantizer_test
