#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

/// What merging computes, as formulas in fp64.
namespace nibble::reference {

using Matrix = std::vector<std::vector<double>>;

inline Matrix matrix(std::size_t rows, std::size_t columns, const std::vector<float>& values) {
  Matrix result(rows, std::vector<double>(columns));
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t j = 0; j < columns; ++j) result[i][j] = static_cast<double>(values[i * columns + j]);
  return result;
}

inline Matrix transposed(const Matrix& m) {
  Matrix result(m.front().size(), std::vector<double>(m.size()));
  for (std::size_t i = 0; i < m.size(); ++i)
    for (std::size_t j = 0; j < m[i].size(); ++j) result[j][i] = m[i][j];
  return result;
}

inline Matrix product(const Matrix& left, const Matrix& right) {
  Matrix result(left.size(), std::vector<double>(right.front().size(), 0.0));
  for (std::size_t i = 0; i < left.size(); ++i)
    for (std::size_t j = 0; j < right.front().size(); ++j)
      for (std::size_t k = 0; k < right.size(); ++k) result[i][j] += left[i][k] * right[k][j];
  return result;
}

/// W + scale B A.
inline Matrix lora(const Matrix& w, const Matrix& a, const Matrix& b, double scale) {
  Matrix result = product(b, a);
  for (std::size_t i = 0; i < w.size(); ++i)
    for (std::size_t j = 0; j < w[i].size(); ++j) result[i][j] = w[i][j] + scale * result[i][j];
  return result;
}

/// Rows scaled to the norms m.
inline Matrix dora(Matrix w, const std::vector<double>& m) {
  for (std::size_t i = 0; i < w.size(); ++i) {
    double squares = 0;
    for (const double value : w[i]) squares += value * value;
    for (double& value : w[i]) value *= m[i] / std::sqrt(squares);
  }
  return w;
}

}  // namespace nibble::reference
