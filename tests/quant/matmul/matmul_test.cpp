#include "nibble/matmul.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "nibble/error.hpp"
#include "nibble/nested.hpp"
#include "tests/quant/matmul/products.hpp"

namespace nibble::matmul {
namespace {

using products::as_doubles;
using products::Case;
using products::expect_kinds;
using products::expect_product;
using products::for_each_target;
using products::FourBit;
using products::Int8;
using products::types;
using reference::Doubles;
using test::Bytes;

struct Shape {
  std::size_t m, n, k;
};
// Few rows and many, around the tiles (256 and 512), the parts of a row (2048, 4096 and 8192), and what registers hold
// (4, 6, 32).
constexpr Shape shapes[] = {{1, 1, 32},    {1, 5, 64},     {3, 70, 96},   {4, 33, 2112}, {6, 9, 128},   {7, 9, 128},
                            {16, 40, 32},  {32, 34, 64},   {33, 37, 160}, {2, 7, 33},    {1, 3, 1},     {40, 300, 50},
                            {13, 300, 7},  {270, 12, 288}, {257, 5, 3},   {24, 261, 36}, {520, 9, 64},  {270, 260, 32},
                            {40, 520, 32}, {2, 9, 8256},   {5, 150, 192}, {2, 9, 8320},  {16, 9, 4224}, {520, 9, 300},
                            {514, 301, 9}, {1, 19, 256},   {1, 9, 8448}};

TEST(Matmul, FourBitProductsAreRight) {
  for (const auto& [m, n, k] : shapes) {
    expect_product(FourBit(n, k, 64, Codebook::nf4, false).weight, m, "NF4");
    expect_product(FourBit(n, k, 32, Codebook::nf4, true).weight, m, "NF4, nested");
  }
}

TEST(Matmul, Int8ProductsAreRight) {
  for (const auto& [m, n, k] : shapes) expect_product(Int8(n, k).weight, m, "int8");
}

TEST(Matmul, EveryCodebookAndBlocksizeIsRight) {
  for (std::size_t blocksize = 32; blocksize <= 4096; blocksize *= 2)
    for (const bool nested : {false, true})
      for (const Codebook codebook : {Codebook::nf4, Codebook::fp4})
        for (const std::size_t m : {2u, 33u})
          expect_product(FourBit(5, blocksize, blocksize, codebook, nested).weight, m,
                         "blocksize " + std::to_string(blocksize));
}

TEST(Matmul, BlocksOfNestedAbsmaxMayEndWithinARow) {
  expect_product(FourBit(300, 96, 32, Codebook::nf4, true).weight, 3, "nested");
  expect_product(FourBit(300, 96, 32, Codebook::nf4, true).weight, 40, "nested");
}

TEST(Matmul, PartsOfRowsMayLieWithinABlock) {
  for (const auto& [k, blocksize] : {std::pair{448, 256}, std::pair{192, 512}, std::pair{320, 128}})
    for (const std::size_t m : {3u, 40u})
      expect_product(
          FourBit(12, static_cast<std::size_t>(k), static_cast<std::size_t>(blocksize), Codebook::nf4, true).weight, m,
          "blocksize " + std::to_string(blocksize));
}

// The root mean square error of a product in fp32, and that of sums of fp32 products in order.
template <class Weight> std::pair<double, double> errors(const Case<Weight>& product) {
  const Doubles w = reference::weights(product.weight), x = as_doubles(DType::f32, product.x, product.depth());
  const Doubles exact = product.expected(w), y = as_doubles(DType::f32, product.run(), product.columns());
  double squares = 0, simple_squares = 0;
  for (std::size_t i = 0; i < product.m; ++i)
    for (std::size_t c = 0; c < product.columns(); ++c) {
      float sum = 0;
      for (std::size_t d = 0; d < product.depth(); ++d)
        sum += static_cast<float>(x(i, d)) * static_cast<float>(product.dx ? w(d, c) : w(c, d));
      squares += std::pow(y(i, c) - exact(i, c), 2);
      simple_squares += std::pow(static_cast<double>(sum) - exact(i, c), 2);
    }
  return {std::sqrt(squares), std::sqrt(simple_squares)};
}

// torch has short chains of sums for few rows.
TEST(Matmul, SmallWeightsRoundLessThanSimpleSums) {
  const auto check = [](const auto& weight, std::size_t m, bool dx) {
    Case product(weight, DType::f32, m, dx);
    product.bias = Bytes(product.bias.size());
    for_each_target([&](const std::string& target) {
      const auto [ours, simple] = errors(product);
      EXPECT_LE(ours, 0.7 * simple) << target << ", " << weight.n << " x " << weight.k << (dx ? ", dx" : ", y");
    });
  };
  for (const std::size_t m : {1u, 2u, 5u}) {
    check(FourBit(96, 256, 64, Codebook::nf4, false).weight, m, true);
    check(Int8(96, 256).weight, m, true);
    check(FourBit(200, 72, 64, Codebook::nf4, false).weight, m, false);
    check(Int8(72, 200).weight, m, true);
  }
}

// Any order, any grouping, and no two tasks on one thread at a time.
TEST(Matmul, BytesDoNotDependOnWhoRunsTheTasks) {
  const FourBit four_bit(600, 320, 64, Codebook::nf4, true);
  const Int8 int8(600, 320);
  const Executor at_once = [](std::size_t tasks, const auto& work) { work(0, tasks); };
  const Executor backwards = [](std::size_t tasks, const auto& work) {
    for (std::size_t i = tasks; i > 0; --i) work(i - 1, i);
  };
  const auto check = [&](const auto& product) {
    const Bytes expected = product.run(at_once);
    EXPECT_EQ(product.run(backwards), expected);
    EXPECT_EQ(product.run(), expected);
  };
  for (const DType dtype : types)
    for (const std::size_t m : {1u, 5u, 300u, 520u})
      for (const bool dx : {false, true}) {
        check(Case<FourBitWeight>(four_bit.weight, dtype, m, dx));
        check(Case<Int8Weight>(int8.weight, dtype, m, dx));
      }
}

// Rows of x beyond 512 are other tasks, so that a narrow weight keeps many threads busy.
TEST(Matmul, NarrowWeightsHaveATaskForEvery512Rows) {
  const FourBit four_bit(200, 64, 64, Codebook::nf4, true);
  for (const DType dtype : types) {
    std::vector<std::size_t> tasks_of_calls;
    (void)Case<FourBitWeight>(four_bit.weight, dtype, 2048, false).run([&](std::size_t tasks, const auto& work) {
      tasks_of_calls.push_back(tasks);
      work(0, tasks);
    });
    EXPECT_EQ(tasks_of_calls.back(), 4);
  }
}

TEST(Matmul, MoreRowsThanAreCopiedAtOnceAreRight) {
  const FourBit four_bit(8200, 3, 64, Codebook::nf4, true);
  for (const DType dtype : types) {
    const Case<FourBitWeight> product(four_bit.weight, dtype, 1100, false);
    std::size_t calls = 0;
    const Bytes y = product.run([&](std::size_t tasks, const auto& work) {
      ++calls;
      work(0, tasks);
    });
    EXPECT_EQ(calls, 4);  // two groups of 512 rows, and the rest, are copied and multiplied
    EXPECT_LE(product.least_error(as_doubles(dtype, y, product.columns()), reference::weights(four_bit.weight)), 1);
  }
}

// A product of a code and absmax that is infinite is infinite, even if its product with x would fit.
TEST(Matmul, Int8AbsmaxMayBeOfAnyMagnitude) {
  Int8 int8(7, 96);
  for (const float absmax : {1e-44f, 1e-38f, 1e-31f, 1e-29f, 0.0f, 1e29f, 1e31f, 1e37f, 3e38f})
    for (const std::size_t m : {1u, 3u, 8u, 40u})
      for (const bool dx : {false, true}) {
        std::fill(int8.absmax.begin(), int8.absmax.end(), absmax);
        Case<Int8Weight> product(int8.weight, DType::f32, m, dx);
        std::vector<float> x = test::normal_weights(m * product.depth(), 1);
        for (float& value : x) value *= absmax < 1 ? 1e20f : 1e-20f;
        product.x = test::stored_as(DType::f32, x);
        product.bias = Bytes(product.bias.size());
        expect_kinds(product, "absmax");
        const Doubles w = reference::weights(int8.weight);
        if (absmax > 1e36f) continue;
        for_each_target([&](const std::string& target) {
          EXPECT_LE(product.error(as_doubles(DType::f32, product.run(), product.columns()), w), 1)
              << target << ", absmax " << absmax << (dx ? ", dx" : ", y");
        });
      }
}

// Even if absmax times x would be infinite.
TEST(Matmul, Int8CodesOfZeroAddNothing) {
  Int8 int8(7, 96);
  std::ranges::fill(int8.codes, std::int8_t{0});
  std::ranges::fill(int8.absmax, 1e29f);
  for (const std::size_t m : {1u, 3u, 8u, 40u})
    for (const bool dx : {false, true}) {
      Case<Int8Weight> product(int8.weight, DType::f32, m, dx);
      product.x = test::stored_as(DType::f32, std::vector<float>(m * product.depth(), 1e20f));
      product.bias = Bytes(product.bias.size());
      for_each_target([&](const std::string& target) {
        for (const double value : as_doubles(DType::f32, product.run(), product.columns()).values)
          ASSERT_EQ(value, 0) << target << ", m = " << m << (dx ? ", dx" : ", y");
      });
    }
}

// Sums of codes times x are up to 127 times as large as those of weights.
TEST(Matmul, Int8SumsThatFitAreFinite) {
  Int8 int8(5, 96);
  std::fill(int8.absmax.begin(), int8.absmax.end(), 0.5f);
  for (const std::size_t m : {1u, 3u, 8u, 40u})
    for (const bool dx : {false, true}) {
      Case<Int8Weight> product(int8.weight, DType::f32, m, dx);
      std::vector<float> x = test::normal_weights(m * product.depth(), 1);
      for (float& value : x) value *= 3e36f;
      product.x = test::stored_as(DType::f32, x);
      for_each_target([&](const std::string& target) {
        const Doubles w = reference::weights(int8.weight);
        EXPECT_LE(product.error(as_doubles(DType::f32, product.run(), product.columns()), w), 1)
            << target << ", m = " << m << (dx ? ", dx" : ", y");
      });
    }
}

TEST(Matmul, NothingNeedsAlignment) {
  const FourBit weight(9, 64, 64, Codebook::nf4, false);
  const auto check = [&](DType dtype, const std::string& target) {
    for (const std::size_t m : {2u, 40u}) {
      const Case<FourBitWeight> product(weight.weight, dtype, m, false);
      const auto moved = [](const Bytes& bytes) {
        Bytes copy(bytes.size() + 1);
        std::copy(bytes.begin(), bytes.end(), copy.begin() + 1);
        return copy;
      };
      const Bytes x = moved(product.x), bias = moved(product.bias), expected = product.run();
      Bytes y(expected.size() + 1);
      linear(weight.weight, dtype, std::span(x).subspan(1), std::span(bias).subspan(1), std::span(y).subspan(1));
      EXPECT_EQ(Bytes(y.begin() + 1, y.end()), expected) << target;
    }
  };
  for_each_target([&](const std::string& target) {
    for (const DType dtype : types) check(dtype, target);
  });
}

TEST(Matmul, NothingIsMultipliedByNothing) {
  const FourBit none(0, 64, 64, Codebook::nf4, false), empty(3, 0, 64, Codebook::nf4, false);
  const FourBit some(3, 64, 64, Codebook::nf4, false);
  const Bytes x(64 * 4);
  linear(none.weight, DType::f32, x, {}, {});
  linear(some.weight, DType::f32, {}, {}, {});
  linear_dx(some.weight, DType::f32, {}, {});
  linear(empty.weight, DType::f32, {}, {}, {});
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::usage);
    return error.what();
  }
  return "no error";
}

TEST(Matmul, WrongSizesAreNamed) {
  const FourBit plain(3, 64, 64, Codebook::nf4, false), nested(3, 64, 64, Codebook::nf4, true);
  const Int8 int8(3, 64);
  Bytes x(2 * 64 * 4), y(2 * 3 * 4);
  const auto of = [&](FourBitWeight weight, const auto& change) {
    change(weight);
    return error_of([&] { linear(weight, DType::f32, x, {}, y); });
  };
  EXPECT_EQ(of(plain.weight, [](auto& w) { w.blocksize = 48; }), "blocksize: is 48, not one of 32, 64, ..., 4096");
  EXPECT_EQ(of(plain.weight, [](auto& w) { w.blocksize = 16; }), "blocksize: is 16, not one of 32, 64, ..., 4096");
  EXPECT_EQ(of(plain.weight, [](auto& w) { w.blocksize = 8192; }), "blocksize: is 8192, not one of 32, 64, ..., 4096");
  EXPECT_EQ(of(plain.weight, [](auto& w) { w.packed = w.packed.first(95); }),
            "packed: has 95 values, and a weight of shape [3, 64] needs 96");
  EXPECT_EQ(of(plain.weight, [](auto& w) { w.absmax = w.absmax.first(2); }),
            "absmax: has 2 values, and a weight of shape [3, 64] needs 3");
  EXPECT_EQ(of(nested.weight, [](auto& w) { w.absmax_codes = w.absmax_codes.first(2); }),
            "absmax_codes: has 2 values, and a weight of shape [3, 64] needs 3");
  EXPECT_EQ(of(nested.weight, [](auto& w) { w.nested_absmax = {}; }),
            "nested_absmax: has 0 values, and a weight of shape [3, 64] needs 1");
  EXPECT_EQ(of(nested.weight, [](auto& w) { w.nested_codebook = w.nested_codebook.first(16); }),
            "nested_codebook: has 16 values, and a weight of shape [3, 64] needs 256");
  EXPECT_EQ(of(plain.weight, [&](auto& w) { w.absmax_codes = nested.absmax_codes; }),
            "absmax_codes: has 3 values, and a weight of shape [3, 64] needs 0");
  EXPECT_EQ(of(plain.weight, [](auto& w) { w.n = std::numeric_limits<std::size_t>::max() / 2; }),
            "weight: cannot have the shape [9223372036854775807, 64]");

  const auto with = [&](Int8Weight weight, const auto& change) {
    change(weight);
    return error_of([&] { linear(weight, DType::f32, x, {}, y); });
  };
  EXPECT_EQ(with(int8.weight, [](auto& w) { w.codes = w.codes.first(3); }),
            "codes: has 3 values, and a weight of shape [3, 64] needs 192");
  EXPECT_EQ(with(int8.weight, [](auto& w) { w.absmax = w.absmax.first(1); }),
            "absmax: has 1 values, and a weight of shape [3, 64] needs 3");

  const std::span<std::byte> out(y);
  EXPECT_EQ(error_of([&] { linear(plain.weight, DType::f64, x, {}, y); }), "x: is F64, not F32, BF16 or F16");
  EXPECT_EQ(error_of([&] { linear_dx(plain.weight, DType::i8, x, y); }), "dy: is I8, not F32, BF16 or F16");
  EXPECT_EQ(error_of([&] { linear(plain.weight, DType::f32, std::span(x).first(255), {}, y); }),
            "x: has 255 bytes, which are not whole rows of 256");
  EXPECT_EQ(error_of([&] { linear(plain.weight, DType::f32, x, {}, out.first(20)); }), "y: has 20 bytes, not 24");
  EXPECT_EQ(error_of([&] { linear(plain.weight, DType::f32, x, out.first(8), y); }), "bias: has 8 bytes, not 12");
  EXPECT_EQ(error_of([&] { linear_dx(plain.weight, DType::f32, out, out); }), "dx: has 24 bytes, not 512");
}

// Sums over nothing are 0, and the bias is left.
TEST(Matmul, WeightsWithoutColumnsOrRows) {
  constexpr std::size_t n = 5;
  const std::vector<float> absmax(n, 1.0F);
  FourBitWeight four_bit;
  Int8Weight int8;
  four_bit.n = int8.n = n;
  int8.absmax = absmax;
  const std::array<float, n> bias{1, 2, 3, 4, 5};
  for (const std::size_t m : {0U, 1U, 3U, 40U})
    for (const bool has_bias : {false, true}) {
      const auto bytes = has_bias ? std::as_bytes(std::span(bias)) : std::span<const std::byte>();
      std::vector<float> expected(m * n), y(m * n, 7), y_int8(m * n, 7);
      for (std::size_t i = 0; has_bias && i < m * n; ++i) expected[i] = bias[i % n];
      linear(four_bit, DType::f32, {}, bytes, std::as_writable_bytes(std::span(y)));
      linear(int8, DType::f32, {}, bytes, std::as_writable_bytes(std::span(y_int8)));
      EXPECT_EQ(y, expected) << m;
      EXPECT_EQ(y_int8, expected) << m;
      linear_dx(four_bit, DType::f32, std::as_bytes(std::span(y)), {});
    }
  FourBitWeight no_rows;
  Int8Weight no_rows_int8;
  no_rows.k = no_rows_int8.k = 64;
  std::vector<float> dx(3 * 64, 7), dx_int8 = dx;
  linear_dx(no_rows, DType::f32, {}, std::as_writable_bytes(std::span(dx)));
  linear_dx(no_rows_int8, DType::f32, {}, std::as_writable_bytes(std::span(dx_int8)));
  EXPECT_EQ(dx, std::vector<float>(3 * 64));
  EXPECT_EQ(dx_int8, dx);
  std::vector<float> part(7);
  EXPECT_EQ(error_of([&] { linear(four_bit, DType::f32, {}, {}, std::as_writable_bytes(std::span(part))); }),
            "y: has 28 bytes, which are not whole rows of 20");
  EXPECT_EQ(error_of([&] { linear(four_bit, DType::f32, std::as_bytes(std::span(part)), {}, {}); }),
            "x: has 28 bytes, which are not whole rows of 0");
}

}  // namespace
}  // namespace nibble::matmul
