#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <span>
#include <vector>

/// GPTQ in fp64, as Frantar et al. (2023) have it: by the Cholesky factor of the inverse, one column at a time.
namespace nibble::test {

using Numbers = std::vector<double>;  // row-major

inline Numbers inverse_of(Numbers a, std::size_t k) {
  Numbers inverse(k * k);
  for (std::size_t i = 0; i < k; ++i) inverse[i * k + i] = 1;
  for (std::size_t p = 0; p < k; ++p) {  // by Gauss and Jordan; no pivoting, because `a` is positive definite
    const double pivot = a[p * k + p];
    for (std::size_t c = 0; c < k; ++c) a[p * k + c] /= pivot, inverse[p * k + c] /= pivot;
    for (std::size_t r = 0; r < k; ++r) {
      const double factor = a[r * k + p];
      if (r == p || factor == 0) continue;
      for (std::size_t c = 0; c < k; ++c)
        a[r * k + c] -= factor * a[p * k + c], inverse[r * k + c] -= factor * inverse[p * k + c];
    }
  }
  return inverse;
}

/// U, upper triangular, with a = transposed(U) U.
inline Numbers upper_cholesky(const Numbers& a, std::size_t k) {
  Numbers u(k * k);
  for (std::size_t i = 0; i < k; ++i)
    for (std::size_t j = i; j < k; ++j) {
      double sum = a[i * k + j];
      for (std::size_t p = 0; p < i; ++p) sum -= u[p * k + i] * u[p * k + j];
      u[i * k + j] = i == j ? std::sqrt(sum) : sum / u[i * k + i];
    }
  return u;
}

/// Of inputs with some correlation. The first `dead` columns are always 0.
inline Numbers second_moment(std::size_t k, std::size_t tokens, unsigned seed, std::size_t dead = 0) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  Numbers x(tokens * k), h(k * k);
  for (std::size_t t = 0; t < tokens; ++t) {
    const double shared = normal(random);
    for (std::size_t c = 0; c < k; ++c)
      x[t * k + c] = c < dead ? 0 : (normal(random) + shared) * (0.1 + static_cast<double>(c * 7 % 13));
    for (std::size_t i = 0; i < k; ++i)
      for (std::size_t j = 0; j < k; ++j) h[i * k + j] += x[t * k + i] * x[t * k + j] / static_cast<double>(tokens);
  }
  return h;
}

inline Numbers damped(Numbers h, std::size_t k, double damping) {
  double mean = 0;
  for (std::size_t i = 0; i < k; ++i) mean += h[i * k + i] / static_cast<double>(k);
  for (std::size_t i = 0; i < k; ++i) h[i * k + i] += mean == 0 ? 1 : damping * mean;
  return h;
}

/// The Cholesky factor of the inverse of H, with rows and columns in this order.
inline Numbers factor_of_inverse(const Numbers& h, std::span<const std::uint32_t> order) {
  const std::size_t k = order.size();
  Numbers permuted(k * k);
  for (std::size_t i = 0; i < k; ++i)
    for (std::size_t j = 0; j < k; ++j) permuted[i * k + j] = h[order[i] * k + order[j]];
  return upper_cholesky(inverse_of(permuted, k), k);
}

/// The values of one row's codes. `quantize(column, w)` gives the value for a weight; `reached(column, weights)` is
/// called before each, with all weights as they are by then. `u` is factor_of_inverse().
inline Numbers gptq(std::span<const float> row, const Numbers& u, std::span<const std::uint32_t> order,
                    const std::function<void(std::size_t, const Numbers&)>& reached,
                    const std::function<double(std::size_t, double)>& quantize) {
  const std::size_t k = row.size();
  Numbers w(row.begin(), row.end()), values(k);
  for (std::size_t j = 0; j < k; ++j) {
    reached(order[j], w);
    values[order[j]] = quantize(order[j], w[order[j]]);
    const double error = (w[order[j]] - values[order[j]]) / u[j * k + j];
    for (std::size_t l = j + 1; l < k; ++l) w[order[l]] -= error * u[j * k + l];
  }
  return values;
}

/// (w - q) H transposed(w - q), summed over all rows.
template <class Q>
double output_error(std::span<const float> weights, const Q& values, const Numbers& h, std::size_t k) {
  double sum = 0;
  for (std::size_t row = 0; row < weights.size(); row += k)
    for (std::size_t i = 0; i < k; ++i)
      for (std::size_t j = 0; j < k; ++j)
        sum += (weights[row + i] - values[row + i]) * h[i * k + j] * (weights[row + j] - values[row + j]);
  return sum;
}

}  // namespace nibble::test
