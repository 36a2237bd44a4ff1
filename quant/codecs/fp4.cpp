#include "nibble/fp4.hpp"

#include "quant/codecs/codecs.hpp"
#include "quant/codecs/four_bit/four_bit.hpp"

namespace nibble {
namespace {

constexpr FourBitTables fp4_tables =
    make_tables(fp4::codebook.value, {11, 10, 13, 12, 15, 14, 9, 0, 8, 1, 6, 7, 4, 5, 2, 3}, 7.0, 14.71875);
// The codebook is symmetric, so it does not matter which sign an absmax has.
constexpr NormalSqnr fp4_normal_sqnr{{{18.85, 18.27, 17.81, 17.41, 17.05, 16.71, 16.38, 16.05},
                                      {19.66, 18.97, 18.50, 18.20, 18.02, 17.94, 17.86, 17.87},
                                      {19.66, 18.97, 18.50, 18.20, 18.02, 17.94, 17.86, 17.87}}};

}  // namespace

std::size_t fp4::encode(std::span<const float> weights, std::size_t blocksize, std::span<std::uint8_t> packed,
                        std::span<float> absmax) {
  return encode_four_bit(fp4_tables, weights, blocksize, packed, absmax);
}

void fp4::decode(std::span<const std::uint8_t> packed, std::span<const float> absmax, std::size_t blocksize,
                 std::span<float> weights) {
  decode_four_bit(fp4_tables, packed, absmax, blocksize, weights);
}

extern const RegisteredCodec fp4_codec;
const RegisteredCodec fp4_codec{{"fp4", "4-bit floating point with an absmax per block", four_bit_options},
                                [](const CodecSpec& spec) -> std::unique_ptr<const Codec> {
                                  return std::make_unique<FourBitCodec>(spec, fp4_tables, fp4_normal_sqnr);
                                }};

}  // namespace nibble
