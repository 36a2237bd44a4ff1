#include <array>
#include <string_view>

#include "nibble/nf4.hpp"

#include "quant/codecs/codecs.hpp"
#include "quant/codecs/four_bit/four_bit.hpp"
#include "quant/codecs/four_bit/four_bit_bf16.hpp"

namespace nibble {
namespace {

constexpr FourBitTables midpoints =
    make_tables(nf4::codebook.value, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, 7.234375, 14.84375);
static_assert(midpoints.has_buckets);
constexpr Bf16Steps bf16_steps = make_bf16_steps(midpoints);
constexpr FourBitTables nf4_tables = [] {
  FourBitTables with_steps = midpoints;
  with_steps.bf16_steps = &bf16_steps;
  return with_steps;
}();
constexpr NormalSqnr nf4_normal_sqnr{{{21.18, 20.73, 20.39, 20.12, 19.87, 19.64, 19.41, 19.18},
                                      {22.49, 21.68, 21.12, 20.73, 20.46, 20.30, 20.19, 20.15},
                                      {22.14, 21.44, 20.95, 20.61, 20.38, 20.24, 20.15, 20.12}}};

}  // namespace

std::size_t nf4::encode(std::span<const float> weights, std::size_t blocksize, std::span<std::uint8_t> packed,
                        std::span<float> absmax) {
  return encode_four_bit(nf4_tables, weights, blocksize, packed, absmax);
}

void nf4::decode(std::span<const std::uint8_t> packed, std::span<const float> absmax, std::size_t blocksize,
                 std::span<float> weights) {
  decode_four_bit(nf4_tables, packed, absmax, blocksize, weights);
}

namespace {

constexpr std::array<std::string_view, 5> nf4_synonyms{"int4", "4bit", "4-bit", "q4", "bnb"};

}  // namespace

extern const RegisteredCodec nf4_codec;
const RegisteredCodec nf4_codec{{"nf4", "4-bit NormalFloat with an absmax per block", four_bit_options},
                                [](const CodecSpec& spec) -> std::unique_ptr<const Codec> {
                                  return std::make_unique<FourBitCodec>(spec, nf4_tables, nf4_normal_sqnr);
                                },
                                nf4_synonyms};

}  // namespace nibble
