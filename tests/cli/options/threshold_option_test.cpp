#include "cli/options/threshold_option.hpp"

#include <gtest/gtest.h>

#include "nibble/error.hpp"
#include "tests/support/corrupt.hpp"

namespace nibble::cli::threshold_option_test {
namespace {

using Figure = Threshold::Figure;
using test::error_of;

Threshold parsed(const std::string& text) { return parse_threshold(Figure::max_rmse, "--max-rmse", text); }

TEST(ThresholdOption, NumbersAloneAndOfPatterns) {
  const auto expect = [](const std::string& text, const std::string& pattern, double limit) {
    EXPECT_EQ(parsed(text).pattern, pattern) << text;
    EXPECT_EQ(parsed(text).limit, limit) << text;
    EXPECT_EQ(parsed(text).figure, Figure::max_rmse);
  };
  expect("0.01", "", 0.01);
  expect("0", "", 0);
  expect("1e-6", "", 1e-6);
  expect(".*down.*=0.5", ".*down.*", 0.5);
  expect("a=b=2", "a=b", 2);  // a pattern may hold the sign
}

TEST(ThresholdOption, WhatIsNoNumberIsUsage) {
  for (const std::string text : {"", "x", "0.1x", "a=", "=", "a=b", "0,1", "nan", "inf", "a=inf", " 1", "1e999"})
    EXPECT_EQ(error_of([&] { (void)parsed(text); }, Errc::usage),
              "--max-rmse '" + text + "': neither a number nor of the form RE=NUMBER");
  EXPECT_EQ(error_of([&] { (void)parsed("a\n"); }, Errc::usage),
            "--max-rmse 'a\\n': neither a number nor of the form RE=NUMBER");
}

// Every tensor would break these, or none.
TEST(ThresholdOption, LimitsThatNoFigureHasAreUsage) {
  const auto refusal = [](Figure figure, const std::string& text) {
    return error_of([&] { (void)parse_threshold(figure, "--" + std::string(to_string(figure)), text); }, Errc::usage);
  };
  EXPECT_EQ(refusal(Figure::max_rmse, "-1"), "--max-rmse '-1': an error is never below 0");
  EXPECT_EQ(refusal(Figure::max_rmse, "a.*=-1e-9"), "--max-rmse 'a.*=-1e-9': an error is never below 0");
  for (const std::string text : {"2", "-1.5", "1.0000001"})
    EXPECT_EQ(refusal(Figure::min_cosine, text), "--min-cosine '" + text + "': a cosine lies between -1 and 1");
  for (const char* const text : {"-1", "0", "1"}) EXPECT_EQ(refusal(Figure::min_cosine, text), "");
  for (const char* const text : {"-20", "0", "200"}) EXPECT_EQ(refusal(Figure::min_sqnr_db, text), "");
}

TEST(ThresholdOption, PatternIsCheckedAtOnce) {
  EXPECT_EQ(error_of([] { (void)parsed("(=1"); }, Errc::usage),
            "--max-rmse '(' is not a regular expression: missing ): (");
}

}  // namespace
}  // namespace nibble::cli::threshold_option_test
