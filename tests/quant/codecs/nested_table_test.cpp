#include "quant/codecs/nested_table.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <limits>
#include <random>
#include <vector>

#include "tests/quant/codecs/codec_support.hpp"

namespace nibble::nested {
namespace {

// Any bits but those of NaN, of which a sum need not keep the bits.
std::array<float, 256> random_values(std::mt19937& random) {
  std::array<float, 256> values{};
  for (float& value : values) {
    do value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    while (value != value);
  }
  return values;
}

// Bit for bit, for parts that start and end anywhere. Without AVX512_VBMI, this only tries decode_slice().
TEST(NestedTable, DecodesAsTheFormulaDoes) {
  test::for_each_target([](const std::string& target) {
    std::mt19937 random(1);
    const std::array<float, 256> values = random_values(random);
    constexpr float offset = 0.25f;
    for (const std::span<const float, 256> table_values : {std::span(codebook), std::span<const float, 256>(values)}) {
      const Table table(table_values);
      for (const std::size_t n : {1u, 63u, 64u, 65u, 256u, 320u, 700u}) {
        std::vector<std::uint8_t> codes(n);
        for (std::uint8_t& code : codes) code = static_cast<std::uint8_t>(random());
        const std::vector<float> nested_absmax{0.5f, 3.0f, 1e-3f};
        for (std::size_t first = 0; first < n; first += 1 + first / 8) {
          std::vector<float> absmax(n - first);
          table.decode_slice(first, codes, nested_absmax, offset, absmax);
          for (std::size_t i = 0; i < absmax.size(); ++i) {
            const float scaled = table_values[codes[first + i]] * nested_absmax[(first + i) / blocksize];
            ASSERT_EQ(std::bit_cast<std::uint32_t>(absmax[i]), std::bit_cast<std::uint32_t>(scaled + offset))
                << target << ", " << n << " values from " << first << ", value " << i;
          }
        }
      }
    }
  });
}

TEST(NestedTable, HasAllCodes) {
  test::for_each_target([](const std::string& target) {
    std::vector<std::uint8_t> codes(256);
    for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint8_t>(i);
    const float one = 1;
    std::vector<float> absmax(256);
    Table(codebook).decode_slice(0, codes, {&one, 1}, 0, absmax);
    for (std::size_t i = 0; i < codes.size(); ++i) EXPECT_EQ(absmax[i], codebook[i]) << target << ", code " << i;
  });
}

}  // namespace
}  // namespace nibble::nested
