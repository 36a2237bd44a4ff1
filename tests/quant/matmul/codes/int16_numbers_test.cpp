#include "quant/matmul/codes/int16_numbers.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/quant/codecs/codec_support.hpp"

namespace nibble::matmul {
namespace {

constexpr std::size_t count = Int16Numbers::count;

// Of memory without alignment.
Int16Numbers converted(const std::vector<float>& numbers) {
  test::Bytes bytes(1);
  const test::Bytes stored = test::stored_as(DType::bf16, numbers);
  bytes.insert(bytes.end(), stored.begin(), stored.end());
  return to_int16(bytes.data() + 1);
}

double value(const Int16Numbers& numbers, std::size_t i) {
  return numbers.first[i] * static_cast<double>(numbers.first_scale) +
         numbers.second[i] * static_cast<double>(numbers.second_scale);
}

// From 2^-lowest to 1, of either sign, all exact in bf16.
std::vector<float> powers(int lowest) {
  std::vector<float> numbers(count);
  for (std::size_t i = 0; i < count; ++i)
    numbers[i] = std::ldexp(i % 2 == 0 ? 1.0f : -1.0078125f, -static_cast<int>(i) * lowest / static_cast<int>(count));
  return numbers;
}

TEST(Int16Numbers, AreExactNearTheLargest) {
  test::for_each_target([](const std::string& target) {
    for (const float scale : {1.0f, 0x1p100f, 0x1p-120f}) {
      std::vector<float> numbers = powers(7);
      for (float& number : numbers) number *= scale;
      const Int16Numbers found = converted(numbers);
      EXPECT_EQ(found.second_scale, 0) << target;
      for (std::size_t i = 0; i < count; ++i) {
        EXPECT_EQ(value(found, i), static_cast<double>(numbers[i])) << target << ", number " << i;
        EXPECT_EQ(found.second[i], 0) << target << ", number " << i;
      }
    }
  });
}

TEST(Int16Numbers, HaveASecondPartIfManyAreFarBelow) {
  test::for_each_target([](const std::string& target) {
    for (const int lowest : {14, 22, 34}) {  // means of 6.4 to 16 below
      const std::vector<float> numbers = powers(lowest);
      const Int16Numbers found = converted(numbers);
      EXPECT_NE(found.second_scale, 0) << target << ", " << lowest;
      for (std::size_t i = 0; i < count; ++i)
        EXPECT_NEAR(value(found, i), static_cast<double>(numbers[i]), 0x1p-30) << target << ", number " << i;
    }
    EXPECT_EQ(converted(powers(11)).second_scale, 0) << target;
  });
}

// 1, and powers of two that are so far below on average of all 64, plus one step for one of them.
std::vector<float> with_mean(int below, int more) {
  std::vector<float> numbers(count, std::ldexp(1.0f, -below));
  numbers[0] = 1;
  for (int i = 0; i < below; ++i) numbers[static_cast<std::size_t>(i) + 1] /= 2;
  numbers[count - 1] = std::ldexp(numbers[count - 1], -more);
  return numbers;
}

TEST(Int16Numbers, MeanExponentsDecide) {
  test::for_each_target([](const std::string& target) {
    EXPECT_EQ(converted(with_mean(6, 0)).second_scale, 0) << target;
    EXPECT_NE(converted(with_mean(6, 1)).second_scale, 0) << target;
    EXPECT_FALSE(std::isnan(converted(with_mean(18, 0)).first_scale)) << target;
    EXPECT_TRUE(std::isnan(converted(with_mean(18, 1)).first_scale)) << target;
  });
}

TEST(Int16Numbers, ZerosDoNotCountInTheMean) {
  test::for_each_target([](const std::string& target) {
    std::vector<float> numbers(count, 0.0f);
    numbers[0] = 1;
    for (std::size_t i = 10; i < 13; ++i) numbers[i] = 0x1.8p-14f;
    const Int16Numbers found = converted(numbers);
    EXPECT_NE(found.second_scale, 0) << target;
    for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(value(found, i), static_cast<double>(numbers[i])) << target;
    for (std::size_t i = 10; i < 13; ++i) numbers[i] = 0x1.8p-30f;
    EXPECT_TRUE(std::isnan(converted(numbers).first_scale)) << target;
  });
}

TEST(Int16Numbers, ScaleIsNaNWhereTheyDoNotSuffice) {
  test::for_each_target([](const std::string& target) {
    EXPECT_TRUE(std::isnan(converted(powers(40)).first_scale)) << target;
    for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()})
      for (const std::size_t at : {0u, 17u, 63u}) {
        std::vector<float> numbers(count, 1);
        numbers[at] = bad;
        const Int16Numbers found = converted(numbers);
        EXPECT_TRUE(std::isnan(found.first_scale)) << target << ", " << bad << " at " << at;
        EXPECT_EQ(found.second_scale, 0) << target;
      }
  });
}

TEST(Int16Numbers, ZerosAreZeros) {
  test::for_each_target([](const std::string& target) {
    std::vector<float> numbers(count, 0.0f);
    EXPECT_EQ(value(converted(numbers), 5), 0) << target;
    numbers[5] = 0x1p-40f;  // the others do not count
    const Int16Numbers found = converted(numbers);
    EXPECT_EQ(value(found, 5), 0x1p-40) << target;
    EXPECT_EQ(found.second_scale, 0) << target;
  });
}

}  // namespace
}  // namespace nibble::matmul
