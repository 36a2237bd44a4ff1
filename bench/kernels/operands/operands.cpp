#include "bench/kernels/operands/operands.hpp"

#include <algorithm>
#include <cmath>
#include <random>
#include <stdexcept>

#include "nibble/bf16.hpp"

namespace nibble::bench {

std::vector<u16> random_bf16(u64 n, float deviation, u64 seed) {
  // The sum of four uniform values. One draw of 64 bits has them all. More than `period` values repeat: a period that
  // no row's length divides makes all rows and blocks different, and takes a tenth of the time.
  constexpr u64 period = 16'000'057;
  std::mt19937_64 random(seed);
  std::vector<u16> values(n);
  const float factor = deviation * std::sqrt(3.0f) / 65536;
  for (u64 i = 0; i < std::min(n, period); ++i) {
    const u64 bits = random();
    const u64 sum = (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
    values[i] = bf16::from_float((static_cast<float>(sum) - 131070.0f) * factor);
  }
  for (u64 i = period; i < n; i += period)
    std::copy_n(values.begin(), std::min(n - i, period), values.begin() + static_cast<std::ptrdiff_t>(i));
  return values;
}

void fill_randomly(const Buffer& buffer, u64 seed) {
  std::mt19937_64 random(seed);
  std::vector<u64> bits((buffer.bytes() + 7) / 8);
  for (u64& word : bits) word = random();
  buffer.from_host(bits.data());
}

std::vector<Buffer> bf16_copies(const std::vector<u16>& values) {
  std::vector<Buffer> copies;
  for (std::size_t i = 0; i < copies_of(2 * values.size()); ++i) copies.push_back(Buffer::of(values));
  return copies;
}

void require(bool right, const std::string& what) {
  if (!right) throw std::runtime_error(what + ": the result is wrong");
}

void ProductErrors::add(const std::vector<float>& weights, const u16* x, u16 y) {
  double sum = 0;
  for (u64 i = 0; i < weights.size(); ++i) sum += double{weights[i]} * double{bf16::to_float(x[i])};
  const double error = double{bf16::to_float(y)} - sum;
  squares_ += sum * sum;
  errors_ += error * error;
}

void check_product(const Shape& shape, u64 m, const std::vector<u16>& x, const Buffer& y,
                   const std::function<std::vector<float>(u64)>& row, const std::string& what) {
  ProductErrors errors;
  const auto result = y.to_host<u16>(0, m * shape.n);
  for (const u64 n : checked_rows(shape)) {
    const std::vector<float> weights = row(n);
    for (u64 at_m = 0; at_m < m; ++at_m) errors.add(weights, &x[at_m * shape.k], result[at_m * shape.n + n]);
  }
  require(errors.are_small(), what);
}

}  // namespace nibble::bench
