#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <vector>

#include "nibble/bf16.hpp"
#include "nibble/codec.hpp"
#include "nibble/matmul.hpp"
#include "quant/codecs/four_bit/int16_codebook.hpp"

/// Products with quantized weights as their formula says. Tests only: speed does not matter.
namespace nibble::reference {

/// A matrix [rows, columns] in row-major order.
struct Doubles {
  std::size_t rows, columns;
  std::vector<double> values;

  Doubles(std::size_t r, std::size_t c) : rows(r), columns(c), values(r * c) {}
  double& operator()(std::size_t r, std::size_t c) { return values[r * columns + c]; }
  double operator()(std::size_t r, std::size_t c) const { return values[r * columns + c]; }
};

/// The absmax of a block in fp32.
inline float absmax(const matmul::FourBitWeight& weight, std::size_t block) {
  if (weight.absmax_codes.empty()) return weight.absmax[block];
  const float scaled = weight.nested_codebook[weight.absmax_codes[block]] * weight.nested_absmax[block / 256];
  return scaled + weight.nested_offset;
}

/// W [n, k]: codebook[code] * absmax in fp32.
inline Doubles weights(const matmul::FourBitWeight& weight) {
  const auto codec = make_codec(weight.codebook == matmul::Codebook::nf4 ? "nf4" : "fp4");
  const std::span<const float> codebook = codec->codebook();
  Doubles w(weight.n, weight.k);
  for (std::size_t i = 0; i < w.values.size(); ++i) {
    const std::size_t code = weight.packed[i / 2] >> (i % 2 == 0 ? 4 : 0) & 15;
    w.values[i] = codebook[code] * absmax(weight, i / weight.blocksize);
  }
  return w;
}

/// By how much the columns of dx may be off if products of dy [n] and absmax are rounded by 2^-14 of the largest of
/// eight rows. Values of a codebook are 1 at most.
inline std::vector<double> rounding_of_factors(const matmul::FourBitWeight& weight, const std::vector<double>& dy) {
  std::vector<double> sums(weight.k);
  for (std::size_t c = 0; c < weight.k; ++c)
    for (std::size_t first = 0; first < weight.n; first += 8) {
      double largest = 0;
      for (std::size_t r = first; r < std::min(first + 8, weight.n); ++r)
        largest = std::max(largest, std::abs(dy[r] * absmax(weight, (r * weight.k + c) / weight.blocksize)));
      sums[c] += 8 * 0x1p-14 * largest;
    }
  return sums;
}
inline std::vector<double> rounding_of_factors(const matmul::Int8Weight& weight, const std::vector<double>& /*dy*/) {
  return std::vector<double>(weight.k);
}

/// W [n, k]: (code * absmax) * (1 / 127) in fp32.
inline Doubles weights(const matmul::Int8Weight& weight) {
  Doubles w(weight.n, weight.k);
  for (std::size_t i = 0; i < w.values.size(); ++i)
    w.values[i] = static_cast<float>(weight.codes[i]) * weight.absmax[i / weight.k] * (1.0f / 127);
  return w;
}

/// The codes [n, k] alone.
inline Doubles codes(const matmul::Int8Weight& weight) {
  Doubles codes(weight.n, weight.k);
  std::ranges::copy(weight.codes, codes.values.begin());
  return codes;
}

/// W with the values that a codebook of 14 bits has.
inline Doubles rounded_to_int16(const matmul::FourBitWeight& weight) {
  const auto codec = make_codec(weight.codebook == matmul::Codebook::nf4 ? "nf4" : "fp4");
  std::array<float, 16> codebook{};
  std::ranges::copy(codec->codebook(), codebook.begin());
  const Int16Codebook rounded = make_int16_codebook(codebook);
  Doubles w = weights(weight);
  for (std::size_t i = 0; i < w.values.size(); ++i) {
    const std::size_t code = weight.packed[i / 2] >> (i % 2 == 0 ? 4 : 0) & 15;
    if (codebook[code] != 0) w.values[i] *= static_cast<double>(rounded.value(code)) * rounded.unit / codebook[code];
  }
  return w;
}

inline Doubles rounded_to_int16(const matmul::Int8Weight& weight) { return weights(weight); }

inline Doubles rounded_to_bf16(Doubles w) {
  for (double& value : w.values) value = bf16::to_float(bf16::from_float(static_cast<float>(value)));
  return w;
}

inline Doubles transposed(const Doubles& a) {
  Doubles b(a.columns, a.rows);
  for (std::size_t r = 0; r < a.rows; ++r)
    for (std::size_t c = 0; c < a.columns; ++c) b(c, r) = a(r, c);
  return b;
}

/// a * b + bias, and with `magnitudes` |a| * |b| + |bias|, by which the error of sums is bounded.
inline Doubles product(const Doubles& a, const Doubles& b, const std::vector<double>& bias, bool magnitudes = false) {
  Doubles y(a.rows, b.columns);
  const auto part = [&](double value) { return magnitudes ? std::abs(value) : value; };
  for (std::size_t r = 0; r < a.rows; ++r) {
    for (std::size_t p = 0; p < a.columns; ++p)
      for (std::size_t c = 0; c < b.columns; ++c) y(r, c) += part(a(r, p) * b(p, c));
    for (std::size_t c = 0; c < bias.size(); ++c) y(r, c) += part(bias[c]);
  }
  return y;
}

}  // namespace nibble::reference
