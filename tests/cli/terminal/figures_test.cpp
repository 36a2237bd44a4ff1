#include "cli/terminal/figures.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace nibble::cli::figures_test {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

TEST(Figures, AreRounded) {
  EXPECT_EQ(decibels(20.468), "20.47");
  EXPECT_EQ(decibels(20.468, 1), "20.5");
  EXPECT_EQ(decibels(-3.014), "-3.01");
  EXPECT_EQ(with_unit(20.468), "20.47 dB");
  EXPECT_EQ(scientific(0.005734), "5.73e-03");
  EXPECT_EQ(percent(0.0947), "9.47 %");
  EXPECT_EQ(similarity(-0.9955127), "-0.995513");
}

TEST(Figures, WhatIsNoneIsADash) {
  const double nan = std::nan("");
  for (const std::string& text : {decibels(nan), with_unit(nan), scientific(nan), percent(nan), similarity(nan)})
    EXPECT_EQ(text, "-");
}

TEST(Figures, ZeroHasNoSign) {
  EXPECT_EQ(decibels(-0.004), "0.00");
  EXPECT_EQ(decibels(-0.0), "0.00");
  EXPECT_EQ(decibels(-0.04, 1), "0.0");
  EXPECT_EQ(decibels(-0.006), "-0.01");
  EXPECT_EQ(with_unit(-0.004), "0.00 dB");
  EXPECT_EQ(scientific(-0.0), "0.00e+00");
  EXPECT_EQ(scientific(-1e-9), "-1.00e-09");
  EXPECT_EQ(percent(-1e-9), "0.00 %");
  EXPECT_EQ(similarity(-1e-9), "0.000000");
}

// One subnormal weight that became 0 beside one of 1e38 makes 1600 dB.
TEST(Figures, RatiosBeyondWhatIsToldHaveNoNumber) {
  EXPECT_EQ(decibels(300), "300.00");
  EXPECT_EQ(decibels(1609.04), ">300");
  EXPECT_EQ(with_unit(1609.04), ">300 dB");
  EXPECT_EQ(decibels(-1609.04), "<-300");
  EXPECT_EQ(with_unit(infinity), "exact");
  EXPECT_EQ(decibels(infinity), "exact");
  EXPECT_EQ(decibels(-infinity), "<-300");  // errors where all weights were 0
}

TEST(Figures, OneIsNotSeveral) {
  EXPECT_EQ(counted(1, "tensor"), "1 tensor");
  EXPECT_EQ(counted(0, "tensor"), "0 tensors");
}

}  // namespace
}  // namespace nibble::cli::figures_test
