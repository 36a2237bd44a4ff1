// What becomes of a tensor in 4 bits: planes, and what is kept until it is finished.
#include "quant/codecs/four_bit/four_bit.hpp"

#include <gtest/gtest.h>

#include "nibble/nested.hpp"
#include "nibble/nf4.hpp"
#include "tests/quant/codecs/codec_support.hpp"

namespace nibble::four_bit_test {
namespace {

using test::bytes_of;
using test::Encoded;

TEST(FourBit, Planes) {
  const TensorInfo tensor{"w", DType::bf16, {344, 129}};  // 44376 weights, 694 blocks
  EXPECT_EQ(make_codec("nf4")->planes(tensor), (std::vector<Plane>{{PlaneRole::codes, DType::u8, {22188, 1}},
                                                                   {PlaneRole::absmax, DType::u8, {694}},
                                                                   {PlaneRole::nested_absmax, DType::f32, {3}},
                                                                   {PlaneRole::nested_codebook, DType::f32, {256}},
                                                                   {PlaneRole::nested_offset, DType::f32, {1}}}));
  const auto plain = make_codec("fp4", {.blocksize = 32, .double_quant = false});
  EXPECT_EQ(plain->planes({"w", DType::f16, {3, 43}}),
            (std::vector<Plane>{{PlaneRole::codes, DType::u8, {65, 1}}, {PlaneRole::absmax, DType::f32, {5}}}));
  EXPECT_EQ(plain->options().blocksize, 32U);
  EXPECT_FALSE(plain->options().double_quant);
}

// More absmax values than finish() has in memory at a time.
TEST(FourBit, LargeTensorsAreFinishedInPieces) {
  const TensorInfo tensor{"w", DType::f32, {9'000'001}};
  const auto weights = bytes_of(test::normal_weights(tensor.shape[0], 11));
  const CodecOptions plain_options{.blocksize = 32, .double_quant = false};
  const Encoded plain = test::encode(*make_codec("nf4", plain_options), tensor, weights);
  const Encoded nested = test::encode(*make_codec("nf4", {.blocksize = 32}), tensor, weights);
  const auto absmax = test::values_of<float>(plain.planes[1]);
  ASSERT_EQ(absmax.size(), 281'251U);
  std::vector<std::uint8_t> codes(absmax.size());
  std::vector<float> nested_absmax((absmax.size() + 255) / 256);
  nested::encode(absmax, nested::offset(absmax), codes, nested_absmax);
  EXPECT_EQ(nested.planes[1], bytes_of(codes));
  EXPECT_EQ(nested.planes[2], bytes_of(nested_absmax));
  EXPECT_EQ(nested.planes[4], bytes_of(std::vector<float>{nested::offset(absmax)}));
}

}  // namespace
}  // namespace nibble::four_bit_test
