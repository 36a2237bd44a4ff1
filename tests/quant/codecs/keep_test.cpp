#include <gtest/gtest.h>

#include "nibble/error.hpp"
#include "tests/quant/codecs/codec_support.hpp"

namespace nibble::keep_test {
namespace {

TEST(Keep, StoresEveryTypeByteForByte) {
  const auto keep = make_codec("keep");
  for (const DTypeTraits& type : dtypes) {
    const TensorInfo tensor{"t", type.dtype, {3, 8}};
    test::Bytes bytes(tensor.bytes());
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 37 + 11);
    EXPECT_EQ(keep->planes(tensor), (std::vector<Plane>{{PlaneRole::codes, tensor.dtype, tensor.shape}}));
    EXPECT_EQ(test::encode(*keep, tensor, bytes, 8).planes[0], bytes) << type.name;
  }
}

TEST(Keep, DecodesWeightsOnly) {
  const auto keep = make_codec("keep");
  const TensorInfo tensor{"counts", DType::i64, {2}};
  try {
    (void)keep->decoder(tensor, {});
    FAIL() << "was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::usage);
    EXPECT_STREQ(error.what(), "tensor 'counts': type I64 cannot be decoded to fp32");
  }
}

}  // namespace
}  // namespace nibble::keep_test
