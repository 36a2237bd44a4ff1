// What becomes of a tensor in 4 bits: planes, and what is kept until it is finished.
#include "quant/codecs/four_bit/four_bit.hpp"

#include <gtest/gtest.h>

#include "nibble/error.hpp"
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
  const auto plain = make_codec("fp4:block-size=32,double-quant=no");
  EXPECT_EQ(plain->planes({"w", DType::f16, {3, 43}}),
            (std::vector<Plane>{{PlaneRole::codes, DType::u8, {65, 1}}, {PlaneRole::absmax, DType::f32, {5}}}));
}

// What a file says of its blocks is a codec and its options.
TEST(FourBit, OptionsAreThoseOfTheGrammar) {
  for (std::size_t blocksize = 32; blocksize <= 4096; blocksize *= 2)
    for (const bool double_quant : {true, false}) {
      const CodecSpec spec = four_bit_spec("fp4", blocksize, double_quant);
      EXPECT_EQ(spec, "fp4:block-size=" + std::to_string(blocksize) + ",double-quant=" + (double_quant ? "yes" : "no"));
      const auto codec = make_codec(spec);
      EXPECT_EQ(dynamic_cast<const FourBitCodec&>(*codec).blocksize(), blocksize);
      EXPECT_EQ(dynamic_cast<const FourBitCodec&>(*codec).double_quant(), double_quant);
    }
  for (const std::uint64_t blocksize : {0U, 16U, 48U, 8192U})
    EXPECT_THROW((void)four_bit_spec("nf4", blocksize, true), Error);
}

// More absmax values than finish() has in memory at a time.
TEST(FourBit, LargeTensorsAreFinishedInPieces) {
  const TensorInfo tensor{"w", DType::f32, {9'000'001}};
  const auto weights = bytes_of(test::normal_weights(tensor.shape[0], 11));
  const Encoded plain = test::encode(*make_codec("nf4:block-size=32,double-quant=no"), tensor, weights);
  const Encoded nested = test::encode(*make_codec("nf4:block-size=32"), tensor, weights);
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
