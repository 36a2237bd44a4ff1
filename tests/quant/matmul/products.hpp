#pragma once

// Products with random weights, what they should be, and how far they are from it.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "nibble/matmul.hpp"
#include "nibble/nested.hpp"
#include "quant/matmul/amx/amx_kernel.hpp"
#include "quant/matmul/codes/code_kernel.hpp"
#include "quant/matmul/words/tile.hpp"
#include "quant/simd/widen.hpp"
#include "tests/quant/codecs/codec_support.hpp"
#include "tests/quant/matmul/amx/emulated.hpp"
#include "tests/quant/matmul/reference.hpp"

namespace nibble::matmul::products {

using reference::Doubles;
using test::Bytes;

inline constexpr float infinity = std::numeric_limits<float>::infinity();
inline constexpr float nan = std::numeric_limits<float>::quiet_NaN();

// A weight with its memory.
struct FourBit {
  FourBitWeight weight;
  std::vector<std::uint8_t> packed, absmax_codes;
  std::vector<float> absmax, nested_absmax;

  FourBit(std::size_t n, std::size_t k, std::size_t blocksize, Codebook codebook, bool nested) {
    std::mt19937 random(static_cast<unsigned>(n * 1000 + k));
    const std::size_t blocks = (n * k + blocksize - 1) / blocksize;
    packed.resize((n * k + 1) / 2);
    for (std::uint8_t& byte : packed) byte = static_cast<std::uint8_t>(random());
    std::uniform_real_distribution<float> scale(0.01f, 0.1f);
    if (nested) {
      absmax_codes.resize(blocks);
      for (std::uint8_t& code : absmax_codes) code = static_cast<std::uint8_t>(random());
      nested_absmax.resize((blocks + 255) / 256);
      for (float& value : nested_absmax) value = scale(random);
    } else {
      absmax.resize(blocks);
      for (float& value : absmax) value = scale(random);
    }
    weight = {n, k, codebook, blocksize, packed, absmax, absmax_codes, nested_absmax, {}, nested ? 0.125f : 0.0f};
    if (nested) weight.nested_codebook = nested::codebook;
  }
};

struct Int8 {
  Int8Weight weight;
  std::vector<std::int8_t> codes;
  std::vector<float> absmax;

  Int8(std::size_t n, std::size_t k) {
    std::mt19937 random(static_cast<unsigned>(n * 1000 + k));
    for (std::size_t i = 0; i < n * k; ++i)
      codes.push_back(static_cast<std::int8_t>(static_cast<int>(random() % 255) - 127));
    for (std::size_t i = 0; i < n; ++i) absmax.push_back(static_cast<float>(random() % 100 + 1) / 64);
    weight = {n, k, codes, absmax};
  }
};

inline Doubles as_doubles(DType dtype, const Bytes& bytes, std::size_t columns) {
  const std::size_t size = traits(dtype).bits / 8;
  Doubles out(bytes.size() / size / columns, columns);
  std::vector<float> room(tile_weights);
  for (std::size_t i = 0; i < out.values.size(); i += tile_weights) {
    const std::size_t n = std::min(tile_weights, out.values.size() - i);
    const auto wide = widen(dtype, std::span(bytes).subspan(i * size, n * size), room);
    std::copy(wide.begin(), wide.end(), out.values.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return out;
}

inline constexpr DType types[] = {DType::f32, DType::bf16, DType::f16};

// Whether dx of one row in bf16 is multiplied in integers where blocks allow it.
inline bool multiplies_dx_in_integers() {
  if (prefers_bf16()) return add_code_rows_vnni() != nullptr;
  return add_code_rows_vbmi() != nullptr || add_code_rows_int16() != nullptr;
}

// A product and what it should be.
template <class Weight> struct Case {
  const Weight& weight;
  DType dtype;
  std::size_t m;
  bool dx;
  Bytes x, bias;

  Case(const Weight& w, DType type, std::size_t rows, bool is_dx) : weight(w), dtype(type), m(rows), dx(is_dx) {
    x = test::stored_as(dtype, test::normal_weights(m * depth(), 1));
    if (!dx) bias = test::stored_as(dtype, test::normal_weights(columns(), 2));
  }

  [[nodiscard]] std::size_t depth() const { return dx ? weight.n : weight.k; }
  [[nodiscard]] std::size_t columns() const { return dx ? weight.k : weight.n; }

  [[nodiscard]] Bytes run(const Executor& executor = on_all_threads) const {
    Bytes y(m * columns() * (traits(dtype).bits / 8));
    if (dx)
      linear_dx(weight, dtype, x, y, executor);
    else
      linear(weight, dtype, x, bias, y, executor);
    return y;
  }

  [[nodiscard]] Doubles expected(const Doubles& w, bool magnitudes = false) const {
    const std::vector<double> added = dx ? std::vector<double>() : as_doubles(dtype, bias, columns()).values;
    return reference::product(as_doubles(dtype, x, depth()), dx ? w : reference::transposed(w), added, magnitudes);
  }

  // How far the worst element is from its value, in units of what rounding allows: of `depth` sums and products in
  // fp32, in any order, then of the result. `more`, by column, is allowed besides, and so is `of_products` of every
  // product.
  [[nodiscard]] double error(const Doubles& y, const Doubles& w, const std::vector<double>& more = {},
                             double of_products = 0) const {
    const Doubles exact = expected(w), magnitude = expected(w, true);
    const double unit = dtype == DType::f32 ? 0x1p-24 : dtype == DType::bf16 ? 0x1p-8 : 0x1p-11;
    double worst = 0;
    for (std::size_t i = 0; i < y.values.size(); ++i) {
      const double of_sums = (static_cast<double>(depth() + 2) * 0x1p-24 + of_products) * magnitude.values[i];
      const double of_column = more.empty() ? 0 : more[i % y.columns];
      const double allowed = of_sums + unit * (std::abs(exact.values[i]) + of_sums) + 0x1p-25 + of_column;
      const double of_element = std::abs(y.values[i] - exact.values[i]) / allowed;
      if (!(of_element <= worst)) worst = of_element;  // NaN stays
    }
    return worst;
  }

  // The instructions that multiply bf16 take subnormal numbers as 0.
  [[nodiscard]] Case without_subnormals() const {
    std::vector<float> numbers(m * depth());
    const Doubles exact = as_doubles(dtype, x, depth());
    std::transform(exact.values.begin(), exact.values.end(), numbers.begin(), [](double value) {
      return std::abs(value) < std::numeric_limits<float>::min() ? 0.0f : static_cast<float>(value);
    });
    Case flushed = *this;
    flushed.x = test::stored_as(dtype, numbers);
    return flushed;
  }

  // dx of int8 codes in AMX tiles: dy has been multiplied by absmax / 127, and with many rows and weights rounded to
  // bf16.
  [[nodiscard]] double error_of_factors(const Doubles& y, const Int8Weight& int8) const {
    const Doubles exact = as_doubles(dtype, x, depth());
    std::vector<float> numbers(m * depth());
    for (std::size_t i = 0; i < numbers.size(); ++i)
      numbers[i] = static_cast<float>(exact.values[i]) * (int8.absmax[i % depth()] * (1.0f / 127));
    Case multiplied = *this;
    multiplied.x = test::stored_as(dtype, numbers);
    return multiplied.error(y, reference::codes(int8));
  }
  [[nodiscard]] static double error_of_factors(const Doubles& /*y*/, const FourBitWeight& /*four_bit*/) {
    return std::numeric_limits<double>::infinity();
  }

  // By how much of itself a product in AMX tiles may be off. What has two terms in bf16 is off by up to 2^-16, and so
  // is a product besides if that of the second terms of both factors is left out. Four roundings in fp32 come with a
  // factor and three terms. What has one term is multiplied exactly.
  [[nodiscard]] double rounding_of_terms() const {
    constexpr bool is_int8 = std::is_same_v<Weight, Int8Weight>;
    if (m < 5) return 0;
    if (dtype == DType::f16) return 0x1p-15;
    if (dtype == DType::f32) return is_int8 ? 0x1p-22 : 0;
    return is_int8 && dx ? 0x1p-15 : 0;
  }

  // A CPU target that multiplies bf16 multiplies weights that are rounded to it, and one that multiplies integers those
  // of a codebook that is rounded, unless there are too many rows or blocks are too small.
  [[nodiscard]] double least_error(const Doubles& y, const Doubles& w) const {
    double least = error(y, w);
    if (amx_kernel()) least = std::min(least, error(y, w, {}, rounding_of_terms()));
    if (dtype != DType::bf16) return least;
    if (dx && m > 32 && weight.n * weight.k > 65536 && amx_kernel())
      least = std::min(least, error_of_factors(y, weight));
    if (prefers_bf16() || amx_kernel())
      least = std::min(least, without_subnormals().error(y, reference::rounded_to_bf16(w)));
    if (code_kernel_int16() || code_kernel_vnni())
      least = std::min(least, error(y, reference::rounded_to_int16(weight)));
    if (dx && m == 1 && multiplies_dx_in_integers()) {
      const std::vector<double> of_factors =
          reference::rounding_of_factors(weight, as_doubles(dtype, x, depth()).values);
      least = std::min(least, error(y, reference::rounded_to_int16(weight), of_factors));
    }
    return least;
  }
};

// On every CPU target: without AMX tiles, where there is a choice both in bf16 and in fp32, and with AMX tiles.
template <class F> void for_each_target(F&& f) {
  test::for_each_target([&](const std::string& target) {
    replace_amx_kernel(std::nullopt);
    f(target);
    if (tile_bf16()) {
      prefer_bf16(!prefers_bf16());
      f(target + (prefers_bf16() ? " in bf16" : " in fp32"));
      prefer_bf16({});
    }
    restore_amx_kernel();
    const bool has_tiles = amx_kernel().has_value();
    if (!has_tiles) replace_amx_kernel(emulated::kernel());
    f(target + (has_tiles ? " with AMX tiles" : " with emulated AMX tiles"));
    restore_amx_kernel();
  });
}

template <class Weight> void expect_product(const Weight& weight, std::size_t m, const std::string& what) {
  const Doubles w = reference::weights(weight);
  for (const DType dtype : types)
    for (const bool dx : {false, true}) {
      const Case<Weight> product(weight, dtype, m, dx);
      for_each_target([&](const std::string& target) {
        const Doubles y = as_doubles(dtype, product.run(), product.columns());
        const double error = product.least_error(y, w);
        EXPECT_LE(error, 1) << what << ": " << target << ", " << traits(dtype).name << (dx ? ", dx" : ", y")
                            << ", m = " << m << ", n = " << weight.n << ", k = " << weight.k;
      });
    }
}

// Whether a number is finite, infinite (with its sign) or NaN.
inline int kind(double value) { return std::isnan(value) ? 2 : std::isinf(value) ? (value > 0 ? 1 : -1) : 0; }

template <class Weight> void expect_kinds(const Case<Weight>& product, const std::string& what) {
  const Doubles exact = product.expected(reference::weights(product.weight));
  for_each_target([&](const std::string& target) {
    const Doubles y = as_doubles(product.dtype, product.run(), product.columns());
    for (std::size_t i = 0; i < y.values.size(); ++i)
      ASSERT_EQ(kind(y.values[i]), kind(exact.values[i]))
          << what << ": " << target << ", " << traits(product.dtype).name << ", m = " << product.m << ", dx "
          << product.dx << ", row " << i / y.columns << ", column " << i % y.columns;
  });
}

}  // namespace nibble::matmul::products
