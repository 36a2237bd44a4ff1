#include <gtest/gtest.h>

#include "nibble/error.hpp"
#include "tests/quant/codecs/codec_support.hpp"

namespace nibble::keep_test {
namespace {

const test::CodecFacts facts("keep", [](double, double) { return 0.0; });

const test::GiveDigests digests({{"keep",
                                  "keep",
                                  OnOverflow::automatic,
                                  {"fe3a7202f4389f702d99331159f6f2b0", "34674b6c4508e00706f09d461fee9b43",
                                   "b126494b78a5c82600c4cfd41d10305d", "6122f901e63634d07c502bbfbf41d92c"},
                                  {"fe3a7202f4389f702d99331159f6f2b0", "bc68a346a450d5246a3bd0c667d43771",
                                   "1e5efe63ca5ee30f91cd7c28415564e8", "7808e4db0725763a165458347c37afc2"}}});

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
