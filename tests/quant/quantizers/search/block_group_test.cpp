#include "quant/quantizers/search/block_group.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tests/quant/codecs/codec_support.hpp"
#include "tests/quant/quantizers/search/search_support.hpp"

namespace nibble::block_group_test {
namespace {

TEST(BlockGroup, InverseIsItsFormula) {
  constexpr float least = std::numeric_limits<float>::denorm_min();
  const std::vector<float> scales{0.0f, -0.0f, 1.0f, -1.0f, 0.7f, -0.83f, 0.125f, 0.1249f, 1e-6f, -least, 1e30f, 3.0f};
  test::for_each_target([&](const std::string& target) {
    const std::size_t lanes = block_group::lanes();
    for (std::size_t first = 0; first < scales.size(); ++first) {
      block_group::OfLanes some;
      for (std::size_t lane = 0; lane < lanes; ++lane) some[lane] = scales[(first + lane) % scales.size()];
      const block_group::Inverses inverses = block_group::inverse_of(some);
      for (std::size_t lane = 0; lane < lanes; ++lane) {
        const float inverse = some[lane] == 0 ? 0.0f : 32737.0f * (4096.0f / 4095) / 8 / some[lane];
        const auto expected = static_cast<std::int16_t>(std::clamp(std::rint(inverse), -32767.0f, 32767.0f));
        EXPECT_EQ(inverses[lane], (block_group::Inverse{expected, expected})) << target << some[lane];
      }
    }
  });
}

// With scales of all sizes, and any number of them. ScaleSearch's tests compare with the formula what the processor
// has.
TEST(BlockGroup, SumsByVnniAreThoseOfTheTarget) {
  const block_group::AddSums vnni = block_group::add_sums_vnni();
  if (vnni == nullptr) GTEST_SKIP() << "the processor has no AVX512_VNNI";
  constexpr std::size_t n = 128, size = n * block_group::max_lanes, most = 9;
  struct alignas(64) Numbers : std::array<std::int16_t, size> {};
  std::mt19937 generator(5);
  const auto fill = [&](Numbers& numbers, int least, int greatest) {
    std::ranges::generate(
        numbers, [&] { return static_cast<std::int16_t>(std::uniform_int_distribution(least, greatest)(generator)); });
  };
  Numbers weights, roots, weighted;
  fill(weights, -4095, 4095);
  fill(roots, 0, 32767);
  fill(weighted, -4095, 4095);
  std::array<block_group::Inverses, most> inverses;
  for (std::size_t s = 0; s < most; ++s)
    for (block_group::Inverse& inverse : inverses[s])
      inverse.fill(static_cast<std::int16_t>(std::uniform_int_distribution(-32767, 32767)(generator) >> (s % 4 * 2)));
  for (const char* const name : {"nf4", "fp4"})
    for (const bool weighs : {false, true})
      for (const std::size_t length : {8U, 32U, 64U, 72U, 128U})
        for (std::size_t count = 0; count <= most; ++count) {
          const FourBitTables& tables = test::four_bit_tables(name);
          const block_group::LaidOut group{weights.data(), weighs ? roots.data() : nullptr,
                                           weighs ? weighted.data() : nullptr};
          std::array<block_group::Sums, most> sums{}, expected{};
          sums[0].product.fill(3);
          expected[0].product.fill(3);
          vnni(tables, SearchValues(tables), group, length, inverses.data(), sums.data(), count);
          const auto add = block_group::add_sums_of_target();
          add(tables, SearchValues(tables), group, length, inverses.data(), expected.data(), count);
          for (std::size_t s = 0; s < most; ++s) {
            EXPECT_EQ(sums[s].product, expected[s].product) << name << weighs << length << ' ' << count << s;
            EXPECT_EQ(sums[s].square, expected[s].square) << name << weighs << length << ' ' << count << s;
            EXPECT_TRUE(s < count || sums[s].square[0] == 0) << s;
          }
        }
}

}  // namespace
}  // namespace nibble::block_group_test
