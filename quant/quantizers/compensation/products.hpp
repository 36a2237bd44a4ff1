#pragma once

#include <cstddef>

/// Products of matrices whose bits do not depend on the CPU target, nor on how the depth is cut into calls.
namespace nibble {

/// Columns of a panel: numbers of a type in 64 bytes.
template <class T> inline constexpr std::size_t panel_width = 64 / sizeof(T);

/// A matrix in memory of which element [row, p] is at row * row_stride + p * depth_stride.
template <class T> struct StridedMatrix {
  const T* numbers;
  std::size_t row_stride, depth_stride;
};

/// sums[r, c] -= sum over p < depth of a[r, p] * panel[p, c] for r < rows and c < panel_width
///
/// The products are subtracted one after the other from p = 0 on, each with one rounding (fma). A row of the panel
/// follows the one before; a row of `sums` has sums_stride numbers. No alignment is needed.
void subtract_products(const StridedMatrix<float>& a, std::size_t rows, std::size_t depth, const float* panel,
                       float* sums, std::size_t sums_stride);
void subtract_products(const StridedMatrix<double>& a, std::size_t rows, std::size_t depth, const double* panel,
                       double* sums, std::size_t sums_stride);

}  // namespace nibble
