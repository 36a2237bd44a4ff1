#include "quant/jobs/measure/counts.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

namespace nibble::counts_test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

Counts counts_of(const std::vector<float>& errors) {
  Counts counts;
  count_errors(std::vector<float>(errors.size(), 0.0f), errors, counts);
  return counts;
}

TEST(CountErrors, BinsBeginWithPowersOfTwo) {
  const float below_one = std::nextafter(1.0f, 0.0f);
  EXPECT_THAT(counts_of({1, -1, std::nextafter(2.0f, 0.0f), below_one, 0.5f, -2}).errors,
              ElementsAre(Pair(-1, 2U), Pair(0, 3U), Pair(1, 1U)));
}

TEST(CountErrors, FromTheSmallestNormalNumberToTheLargest) {
  EXPECT_THAT(counts_of({0x1p-126f, std::numeric_limits<float>::max(), 0x1p127f}).errors,
              ElementsAre(Pair(-126, 1U), Pair(127, 2U)));
}

TEST(CountErrors, ZeroAndWhatIsSmallerIsExact) {
  const Counts counts = counts_of({0.0f, -0.0f, std::nextafter(0x1p-126f, 0.0f), -0x1p-149f});
  EXPECT_EQ(counts.exact, 4U);
  EXPECT_THAT(counts.errors, IsEmpty());
}

TEST(CountErrors, WhatIsNotFiniteCountsNowhere) {
  Counts counts;
  const float largest = std::numeric_limits<float>::max();
  count_errors(std::vector<float>{nan, 1, infinity, infinity, -largest, 3},
               std::vector<float>{1, nan, 1, infinity, largest, 4}, counts);
  EXPECT_EQ(counts.exact, 0U);
  EXPECT_THAT(counts.errors, ElementsAre(Pair(0, 1U)));
}

TEST(CountErrors, AreOfTheDifference) {
  Counts counts;
  count_errors(std::vector<float>{100, -8, 3}, std::vector<float>{104, -8, 2.75f}, counts);
  EXPECT_EQ(counts.exact, 1U);
  EXPECT_THAT(counts.errors, ElementsAre(Pair(-2, 1U), Pair(2, 1U)));
}

// One tile after the other goes into the same counts.
TEST(CountErrors, AddToWhatIsThere) {
  Counts counts = counts_of({4, 0, 1});
  count_errors(std::vector<float>(4), std::vector<float>{2, 4, 0, 0.25f}, counts);
  EXPECT_EQ(counts.exact, 2U);
  EXPECT_THAT(counts.errors, ElementsAre(Pair(-2, 1U), Pair(0, 1U), Pair(1, 1U), Pair(2, 2U)));
  EXPECT_THAT(counts.codes, IsEmpty());
}

TEST(CountCodes, HighNibblesAndLowOnes) {
  Counts counts;
  count_codes(std::vector{std::byte{0x01}, std::byte{0xF1}}, 4, counts);
  EXPECT_THAT(counts.codes, ElementsAre(1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1));
  count_codes(std::vector{std::byte{0x0F}}, 2, counts);
  EXPECT_THAT(counts.codes, ElementsAre(2, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2));
}

TEST(CountCodes, LastOfAnOddNumberIsNobodys) {
  Counts counts;
  count_codes(std::vector{std::byte{0x12}, std::byte{0x3A}}, 3, counts);
  EXPECT_THAT(counts.codes, ElementsAre(0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
}

TEST(CountCodes, NoWeights) {
  Counts counts;
  count_codes({}, 0, counts);
  EXPECT_EQ(counts.codes, std::vector<std::uint64_t>(16));
}

TEST(AddCounts, MergesBinsInTheirOrder) {
  Counts to = counts_of({1, 4, 0}), from = counts_of({0.5f, 4, 4, 16, 0, 0});
  from.codes.assign(16, 2);
  add(to, from);
  EXPECT_THAT(to.errors, ElementsAre(Pair(-1, 1U), Pair(0, 1U), Pair(2, 3U), Pair(4, 1U)));
  EXPECT_EQ(to.exact, 3U);
  EXPECT_EQ(to.codes, from.codes);  // and not lost where only one of them has any
  add(to, Counts());
  EXPECT_EQ(to.codes, from.codes);
  add(to, from);
  EXPECT_EQ(to.codes, std::vector<std::uint64_t>(16, 4));
}

TEST(Counts, EntropyIsInBits) {
  EXPECT_TRUE(std::isnan(Counts().entropy()));
  Counts counts;
  counts.codes.assign(16, 3);
  EXPECT_DOUBLE_EQ(counts.entropy(), 4);
  counts.codes.assign(16, 0);
  EXPECT_TRUE(std::isnan(counts.entropy()));
  counts.codes[7] = 5;
  EXPECT_EQ(counts.entropy(), 0);
  counts.codes[8] = 5;
  EXPECT_DOUBLE_EQ(counts.entropy(), 1);
}

// A codebook of 256 values, with a byte for each code.
class ByteCodec final : public Codec {
 public:
  ByteCodec() : Codec(CodecSpec()) {}
  [[nodiscard]] std::span<const float> codebook() const noexcept override { return values_; }
  [[nodiscard]] std::vector<Plane> planes(const TensorInfo& tensor) const override {
    return {{PlaneRole::codes, DType::u8, tensor.shape}};
  }
  [[nodiscard]] std::uint64_t code_bytes(const TensorInfo&, std::uint64_t n) const override { return n; }
  [[nodiscard]] std::unique_ptr<Decoder> decoder(const TensorInfo&,
                                                 std::span<const std::span<const std::byte>>) const override {
    return nullptr;
  }

 private:
  std::vector<float> values_ = std::vector<float>(256);
};

TEST(Counts, CodesOfFourBitsAreKnown) {
  for (const std::string_view name : codec_names())
    EXPECT_EQ(has_four_bit_codes(*make_codec(name)), name == "nf4" || name == "fp4") << name;
  EXPECT_FALSE(has_four_bit_codes(ByteCodec()));
}

}  // namespace
}  // namespace nibble::counts_test
