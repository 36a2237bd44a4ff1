// The codes around a value against a search among all of them.
#include "quant/quantizers/search/codes_around.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>

#include "nibble/nested.hpp"
#include "quant/quantizers/search/signed_codebook.hpp"

namespace nibble {
namespace {

// The nearest code; of two that are as near, the lower one.
std::size_t nearest(std::span<const float> values, float v) {
  std::size_t best = 0;
  for (std::size_t code = 1; code < values.size(); ++code)
    if (std::abs(values[code] - v) < std::abs(values[best] - v)) best = code;
  return best;
}

void expect_codes_around(std::span<const float> values, const CodesByValue& codes, float v) {
  const std::string what = std::to_string(v);
  const CodesAround around = codes.around(v);
  const std::size_t last = values.size() - 1, code = nearest(values, std::clamp(v, -1.0f, 1.0f));
  EXPECT_EQ(around.nearest, code) << what;
  // The other one is a neighbour, on the other side of v if there is one.
  const bool is_below = code == last || (code > 0 && v < values[code]);
  EXPECT_EQ(around.other, is_below ? code - 1 : code + 1) << what;
}

TEST(CodesByValue, FindsTheCodesOnBothSides) {
  std::mt19937 generator(1);
  std::uniform_real_distribution<float> anywhere(-1.1f, 1.1f);
  for (const std::span<const float> values : {used_signed_values, std::span<const float>(nested::codebook)}) {
    const CodesByValue codes(values);
    for (int i = 0; i < 20000; ++i) expect_codes_around(values, codes, anywhere(generator));
    for (const float value : values)
      for (const float v : {value, std::nextafter(value, -2.0f), std::nextafter(value, 2.0f)})
        expect_codes_around(values, codes, v);
    for (const float v : {0.0f, -0.0f, 1e-30f, -1e-30f, 2.0f, -2.0f, std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()})
      expect_codes_around(values, codes, v);
  }
}

TEST(CodesByValue, TakesNanAsTheLeastValue) {
  const CodesAround around = CodesByValue(used_signed_values).around(std::numeric_limits<float>::quiet_NaN());
  EXPECT_EQ(around.nearest, 0);
  EXPECT_EQ(around.other, 1);
}

TEST(CodesByValue, TakesTwoValues) {
  const float values[] = {-0.5f, 0.25f};
  const CodesByValue codes(values);
  for (const float v : {-1.0f, -0.5f, -0.2f, -0.125f, 0.0f, 0.25f, 1.0f}) expect_codes_around(values, codes, v);
}

}  // namespace
}  // namespace nibble
