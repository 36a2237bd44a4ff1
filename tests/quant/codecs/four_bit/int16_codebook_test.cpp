#include "quant/codecs/four_bit/int16_codebook.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "nibble/fp4.hpp"
#include "nibble/nf4.hpp"

namespace nibble {
namespace {

std::array<float, 16> as_array(const auto& codebook) {
  std::array<float, 16> values{};
  std::ranges::copy(codebook.value, values.begin());
  return values;
}

double largest_error(const std::array<float, 16>& codebook) {
  const Int16Codebook rounded = make_int16_codebook(codebook);
  double largest = 0;
  for (std::size_t code = 0; code < 16; ++code) {
    EXPECT_LE(std::abs(rounded.value(code)), Int16Codebook::most);
    largest = std::max(largest, std::abs(rounded.value(code) * static_cast<double>(rounded.unit) - codebook[code]));
  }
  return largest;
}

TEST(Int16Codebook, IsNearNf4) { EXPECT_LE(largest_error(as_array(nf4::codebook)), 0.4 / Int16Codebook::most); }

TEST(Int16Codebook, IsFp4) { EXPECT_LE(largest_error(as_array(fp4::codebook)), 0x1p-24); }

TEST(Int16Codebook, HasItsValuesTwiceAndInBytes) {
  const Int16Codebook rounded = make_int16_codebook(as_array(nf4::codebook));
  for (std::size_t code = 0; code < 16; ++code) {
    EXPECT_EQ(rounded.repeated[code + 16], rounded.value(code));
    EXPECT_EQ(static_cast<std::int16_t>(rounded.upper[code] << 8 | rounded.lower[code]), rounded.value(code));
  }
}

TEST(Int16Codebook, HasTheUnitOfLeastError) {
  const std::array<float, 16> codebook = as_array(nf4::codebook);
  const double found = int16_codebook::squared_error(codebook, make_int16_codebook(codebook));
  for (int greatest = 8064; greatest <= Int16Codebook::most; ++greatest)
    EXPECT_LE(found, int16_codebook::squared_error(codebook, int16_codebook::with_unit(codebook, 1.0 / greatest)));
}

}  // namespace
}  // namespace nibble
