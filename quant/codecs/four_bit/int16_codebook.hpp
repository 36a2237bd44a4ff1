#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace nibble {

/// A codebook in integers: value(code) * unit is near codebook[code].
///
/// Values have 13 bits and a sign, so that eight products with numbers of 15 bits and a sign fit 32 bits.
struct Int16Codebook {
  alignas(64) std::array<std::int16_t, 32> repeated{};        ///< the values, by code, twice
  alignas(16) std::array<std::uint8_t, 16> lower{}, upper{};  ///< their bytes
  float unit = 0;

  static constexpr int most = (1 << 13) - 1;
  static_assert(std::int64_t{8} * most * INT16_MAX <= INT32_MAX);

  [[nodiscard]] constexpr int value(std::size_t code) const { return repeated[code]; }
};

namespace int16_codebook {

constexpr Int16Codebook with_unit(const std::array<float, 16>& codebook, double unit) {
  Int16Codebook rounded;
  rounded.unit = static_cast<float>(unit);
  for (std::size_t code = 0; code < 16; ++code) {
    const double exact = static_cast<double>(codebook[code]) / unit;
    const int value = static_cast<int>(exact + (exact < 0 ? -0.5 : 0.5));
    rounded.repeated[code] = rounded.repeated[code + 16] = static_cast<std::int16_t>(value);
    rounded.lower[code] = static_cast<std::uint8_t>(value & 0xFF);
    rounded.upper[code] = static_cast<std::uint8_t>(value >> 8 & 0xFF);
  }
  return rounded;
}

constexpr double squared_error(const std::array<float, 16>& codebook, const Int16Codebook& rounded) {
  double sum = 0;
  for (std::size_t code = 0; code < 16; ++code) {
    const double error = rounded.value(code) * static_cast<double>(rounded.unit) - static_cast<double>(codebook[code]);
    sum += error * error;
  }
  return sum;
}

}  // namespace int16_codebook

/// With the unit of least error of those that give the largest magnitude a value from 8064 to 8191. With 8064, which is
/// a multiple of 192, FP4 is exact.
constexpr Int16Codebook make_int16_codebook(const std::array<float, 16>& codebook) {
  double largest = 0, least_error = std::numeric_limits<double>::infinity();
  for (const float value : codebook)
    if (const double magnitude = value < 0 ? -value : value; magnitude > largest) largest = magnitude;
  Int16Codebook best;
  for (int greatest = 8064; greatest <= Int16Codebook::most; ++greatest) {
    const Int16Codebook rounded = int16_codebook::with_unit(codebook, largest / greatest);
    const double error = int16_codebook::squared_error(codebook, rounded);
    if (error >= least_error) continue;
    least_error = error;
    best = rounded;
  }
  return best;
}

}  // namespace nibble
