#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "nibble/bf16.hpp"
#include "quant/codecs/four_bit/four_bit.hpp"
#include "quant/matmul/codes/code_kernel.hpp"
#include "quant/matmul/lines.hpp"

/// Operands of kernels whose sums are exact in fp32, and whose numbers are exact in bf16: small integers times powers
/// of two. So any order of sums gives the same result, and kernels are compared with plain loops for equality.
namespace nibble::matmul::exact {

struct Matrix {
  std::size_t rows, columns;
  std::vector<float> values;

  Matrix(std::size_t r, std::size_t c) : rows(r), columns(c), values(r * c) {}
  float& operator()(std::size_t r, std::size_t c) { return values[r * columns + c]; }
  float operator()(std::size_t r, std::size_t c) const { return values[r * columns + c]; }
};

inline Matrix integers(std::size_t rows, std::size_t columns, unsigned seed) {
  std::mt19937 random(seed);
  Matrix matrix(rows, columns);
  for (float& value : matrix.values) value = static_cast<float>(static_cast<int>(random() % 9) - 4);
  return matrix;
}

/// The sum over p of a[i][p] * b[j][p].
inline float product(const Matrix& a, std::size_t i, const Matrix& b, std::size_t j) {
  float sum = 0;
  for (std::size_t p = 0; p < a.columns; ++p) sum += a(i, p) * b(j, p);
  return sum;
}

/// One number, or two, as a word of a kernel.
inline std::uint32_t word(std::size_t per_word, float first, float second = 0) {
  if (per_word == 1) return std::bit_cast<std::uint32_t>(first);
  return bf16::from_float(first) | static_cast<std::uint32_t>(bf16::from_float(second)) << 16;
}

/// The rows of a matrix with an even number of columns, in aligned words.
inline Lines<std::uint32_t> words(std::size_t per_word, const Matrix& matrix) {
  Lines<std::uint32_t> out(matrix.values.size() / per_word);
  for (std::size_t i = 0; i < matrix.values.size(); i += per_word)
    out.data()[i / per_word] = word(per_word, matrix.values[i], matrix.values[i + per_word - 1]);
  return out;
}

/// A weight in codes of the codebook -8, -7, ..., 7, of whole blocks. Its memory ends with its last byte, so that
/// AddressSanitizer sees what is read behind it.
struct Codes {
  FourBitTables tables{};
  std::vector<std::uint8_t> packed;
  std::vector<float> absmax;
  std::size_t blocksize;
  Matrix weights;

  Codes(std::size_t rows, std::size_t columns, std::size_t block, unsigned seed)
      : packed(rows * columns / 2), absmax(rows * columns / block), blocksize(block), weights(rows, columns) {
    std::mt19937 random(seed);
    for (std::size_t i = 0; i < 16; ++i) tables.codebook[i] = static_cast<float>(i) - 8;
    tables.int16_codebook = make_int16_codebook(tables.codebook);
    for (std::uint8_t& byte : packed) byte = static_cast<std::uint8_t>(random());
    for (float& value : absmax) value = std::ldexp(1.0f, static_cast<int>(random() % 3) - 1);
    for (std::size_t i = 0; i < weights.values.size(); ++i)
      weights.values[i] = tables.codebook[packed[i / 2] >> (i % 2 == 0 ? 4 : 0) & 15] * absmax[i / block];
  }

  [[nodiscard]] CodeRows rows() const {
    return {.tables = tables,
            .packed = packed.data(),
            .packed_stride = weights.columns / 2,
            .absmax = absmax.data(),
            .absmax_stride = weights.columns / blocksize,
            .blocksize = blocksize,
            .rows = weights.rows,
            .n = weights.columns,
            .ahead = 0};
  }
};

}  // namespace nibble::matmul::exact
