#pragma once

#include <cstdint>
#include <span>

/// Columns of a matrix whose root mean square is at least 6 times the median one: they raise the absmax of every block
/// or row that they cross.
namespace nibble {

/// Matrices with more columns are not searched.
inline constexpr std::uint64_t max_columns = 1 << 16;

/// Whether fp32 holds the sums of squares of a matrix with this absmax; others are not searched.
[[nodiscard]] bool has_column_energy(float absmax);

/// energy[c] += w^2 over the weights w of column c that are finite. `weights` are consecutive weights of any rows, the
/// first in column `column`; `finite` says whether all of them are.
void add_column_energy(std::span<const float> weights, std::uint64_t column, bool finite, std::span<float> energy);

struct OutlierColumns {
  std::uint64_t count = 0;
  double energy = 0;  ///< their share of the energy; 0 if there are none
};

/// `energy` has a value for each column, and there is at least one.
[[nodiscard]] OutlierColumns find_outliers(std::span<const double> energy);

}  // namespace nibble
