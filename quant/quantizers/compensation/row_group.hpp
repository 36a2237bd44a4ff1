#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "quant/codecs/four_bit/four_bit.hpp"
#include "quant/quantizers/compensation/products.hpp"

/// The scales and codes of 16 rows side by side. A matrix [columns, 16] has the numbers of 16 rows in each column of a
/// weight, so a vector has a lane for each row. Every CPU target writes the same bits.
namespace nibble::row_group {

inline constexpr std::size_t rows = panel_width<float>;
using OfRows = std::array<float, rows>;

/// The codes of a 4-bit format by the number of midpoints below v = w * (1 / absmax), and their values.
struct FourBitGrid {
  explicit FourBitGrid(const FourBitTables& tables);

  alignas(64) std::array<float, 15> midpoint{};  ///< ascending
  alignas(64) std::array<float, 16> value{};
  std::array<std::uint8_t, 16> code;
};

/// The largest magnitude of each row: infinity or NaN if one of its weights is.
[[nodiscard]] OfRows largest_magnitudes(const float* weights, std::size_t columns);

/// For each row the absmax s of least sum over the columns of importance * (w - s value)^2, which is what ScaleSearch
/// finds where all columns have the same importance: A / B of the nearest codes of the best of `largest` times each of
/// the ratios, and then of the nearest codes of that, where
///
///   A = sum importance w value,  B = sum importance value^2,  A^2 / B is greatest
///
/// A row whose largest magnitude is outside [1e-30, 1e30] gets that magnitude.
[[nodiscard]] OfRows search_absmax(const FourBitGrid& grid, const float* weights, std::size_t columns,
                                   const float* importance, const OfRows& largest, std::span<const float> ratios);

/// By how much the nearest codes for each absmax s lower that sum, compared with zeros, over largest^2: s (2 A - s B).
[[nodiscard]] OfRows gains(const FourBitGrid& grid, const float* weights, std::size_t columns, const float* importance,
                           const OfRows& largest, const OfRows& absmax);

/// Columns that are quantized one after the other, with what each adds to those after it.
struct Columns {
  std::size_t count;
  const float* original;   ///< [count, rows]
  const float* passed_on;  ///< row i of InputFactor::tile() from these columns on, which are 64 numbers apart
  float* weights;          ///< [count, rows], as the columns before have changed them; overwritten
  float* difference;       ///< [count, rows]: the value of the code less the original weight
  std::uint8_t* codes;     ///< [count, rows]
};

/// Does not round: the values are the weights. Writes no codes.
void pass_on(const Columns& columns);

/// Codes as encode_four_bit_for() chooses them.
void quantize(const FourBitGrid& grid, const OfRows& absmax, const Columns& columns);

/// Codes of int8 rows: w * (127 / absmax), rounded to an integer, halves to even, at most 127; 0 if absmax is 0.
void quantize_int8(const OfRows& absmax, const Columns& columns);

}  // namespace nibble::row_group
