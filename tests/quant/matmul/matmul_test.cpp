#include "nibble/matmul.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <random>

#include "nibble/error.hpp"
#include "nibble/nested.hpp"
#include "quant/matmul/code_kernel.hpp"
#include "quant/matmul/tile.hpp"
#include "quant/simd/widen.hpp"
#include "tests/quant/codecs/codec_support.hpp"
#include "tests/quant/matmul/reference.hpp"

namespace nibble::matmul {
namespace {

using reference::Doubles;
using test::Bytes;

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

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

Doubles as_doubles(DType dtype, const Bytes& bytes, std::size_t columns) {
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

constexpr DType types[] = {DType::f32, DType::bf16, DType::f16};

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
  // fp32, in any order, then of the result. `more`, by column, is allowed besides.
  [[nodiscard]] double error(const Doubles& y, const Doubles& w, const std::vector<double>& more = {}) const {
    const Doubles exact = expected(w), magnitude = expected(w, true);
    const double unit = dtype == DType::f32 ? 0x1p-24 : dtype == DType::bf16 ? 0x1p-8 : 0x1p-11;
    double worst = 0;
    for (std::size_t i = 0; i < y.values.size(); ++i) {
      const double of_sums = static_cast<double>(depth() + 2) * 0x1p-24 * magnitude.values[i];
      const double of_column = more.empty() ? 0 : more[i % y.columns];
      const double allowed = of_sums + unit * (std::abs(exact.values[i]) + of_sums) + 0x1p-25 + of_column;
      worst = std::max(worst, std::abs(y.values[i] - exact.values[i]) / allowed);
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

  // A CPU target that multiplies bf16 multiplies weights that are rounded to it, and one that multiplies integers those
  // of a codebook that is rounded, unless there are too many rows or blocks are too small.
  [[nodiscard]] double least_error(const Doubles& y, const Doubles& w) const {
    double least = error(y, w);
    if (dtype != DType::bf16) return least;
    if (prefers_bf16()) least = std::min(least, without_subnormals().error(y, reference::rounded_to_bf16(w)));
    if (code_kernel_int16() || code_kernel_vnni())
      least = std::min(least, error(y, reference::rounded_to_int16(weight)));
    if (dx && m == 1 && add_code_rows_vbmi() != nullptr && !prefers_bf16()) {
      const std::vector<double> of_factors =
          reference::rounding_of_factors(weight, as_doubles(dtype, x, depth()).values);
      least = std::min(least, error(y, reference::rounded_to_int16(weight), of_factors));
    }
    return least;
  }
};

// On every CPU target and, where there is a choice between bf16 and fp32, with both.
template <class F> void for_each_target(F&& f) {
  test::for_each_target([&](const std::string& target) {
    f(target);
    if (!tile_bf16()) return;
    prefer_bf16(!prefers_bf16());
    f(target + (prefers_bf16() ? " in bf16" : " in fp32"));
    prefer_bf16({});
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
int kind(double value) { return std::isnan(value) ? 2 : std::isinf(value) ? (value > 0 ? 1 : -1) : 0; }

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

// Integers change some results, and products in fp32 do not.
TEST(Matmul, DxOfOneRowInBf16IsMultipliedInIntegers) {
  const FourBit four_bit(1000, 4096, 64, Codebook::nf4, true);
  const Case<FourBitWeight> in_bf16(four_bit.weight, DType::bf16, 1, true);
  Case<FourBitWeight> in_fp32(four_bit.weight, DType::f32, 1, true);
  const Doubles x = as_doubles(DType::bf16, in_bf16.x, 1000);
  in_fp32.x = test::stored_as(DType::f32, std::vector<float>(x.values.begin(), x.values.end()));
  for_each_target([&](const std::string& target) {
    const Doubles y = as_doubles(DType::bf16, in_bf16.run(), 4096), exact = as_doubles(DType::f32, in_fp32.run(), 4096);
    std::size_t changed = 0;
    for (std::size_t i = 0; i < y.values.size(); ++i)
      if (y.values[i] != bf16::to_float(bf16::from_float(static_cast<float>(exact.values[i])))) ++changed;
    const bool in_integers = add_code_rows_vbmi() != nullptr && !prefers_bf16();
    EXPECT_EQ(changed > 0, in_integers) << target << ", " << changed << " changed";
  });
}

// A product of a code and absmax that is infinite is infinite, even if its product with x would fit.
TEST(Matmul, Int8AbsmaxMayBeOfAnyMagnitude) {
  Int8 int8(7, 96);
  for (const float absmax : {1e-44f, 1e-38f, 1e-31f, 1e-29f, 0.0f, 1e29f, 1e31f, 1e37f, 3e38f})
    for (const std::size_t m : {1u, 3u, 8u, 40u}) {
      std::fill(int8.absmax.begin(), int8.absmax.end(), absmax);
      Case<Int8Weight> product(int8.weight, DType::f32, m, false);
      std::vector<float> x = test::normal_weights(m * 96, 1);
      for (float& value : x) value *= absmax < 1 ? 1e20f : 1e-20f;
      product.x = test::stored_as(DType::f32, x);
      product.bias = Bytes(product.bias.size());
      expect_kinds(product, "absmax");
      const Doubles w = reference::weights(int8.weight);
      if (absmax > 1e36f) continue;
      for_each_target([&](const std::string& target) {
        EXPECT_LE(product.error(as_doubles(DType::f32, product.run(), 7), w), 1) << target << ", absmax " << absmax;
      });
    }
}

// Sums of codes times x are up to 127 times as large as those of weights.
TEST(Matmul, Int8SumsThatFitAreFinite) {
  Int8 int8(5, 96);
  std::fill(int8.absmax.begin(), int8.absmax.end(), 0.5f);
  for (const std::size_t m : {1u, 3u, 8u, 40u}) {
    Case<Int8Weight> product(int8.weight, DType::f32, m, false);
    std::vector<float> x = test::normal_weights(m * 96, 1);
    for (float& value : x) value *= 3e36f;
    product.x = test::stored_as(DType::f32, x);
    for_each_target([&](const std::string& target) {
      const Doubles w = reference::weights(int8.weight);
      EXPECT_LE(product.error(as_doubles(DType::f32, product.run(), 5), w), 1) << target << ", m = " << m;
    });
  }
}

TEST(Matmul, Bf16MagnitudesMayDifferBetweenBlocks) {
  FourBit four_bit(7, 512, 64, Codebook::nf4, false);
  const std::vector<float> absmax = four_bit.absmax;
  for (const int first : {-120, -100, 0, 100})
    for (const int step : {-2, 0, 2}) {  // from block to block
      std::vector<float> x = test::normal_weights(std::size_t{2} * 512, 1);
      for (std::size_t i = 0; i < x.size(); ++i)
        x[i] = std::ldexp(x[i], first + step * (static_cast<int>(i % 512 / 64) - 4));
      for (std::size_t i = 0; i < absmax.size(); ++i) four_bit.absmax[i] = std::ldexp(absmax[i], -first);
      const Doubles w = reference::weights(four_bit.weight);
      Case<FourBitWeight> product(four_bit.weight, DType::bf16, 2, false);
      product.x = test::stored_as(DType::bf16, x);
      product.bias = Bytes(product.bias.size());
      for_each_target([&](const std::string& target) {
        const Doubles y = as_doubles(DType::bf16, product.run(), 7);
        EXPECT_LE(product.least_error(y, w), 1) << target << ", from 2^" << first << ", steps of 2^" << step;
      });
    }
}

// Where the weights of outliers are 0, the other numbers of their blocks are all that counts.
TEST(Matmul, Bf16OutliersDoNotHideOtherNumbers) {
  constexpr std::size_t n = 9, k = 512, m = 3;
  for (const bool is_zero : {true, false})
    for (const std::size_t apart : {5u, 64u, 67u}) {
      FourBit four_bit(n, k, 64, Codebook::nf4, false);
      for (std::size_t i = 0; is_zero && i < n * k; ++i)
        if (i % k % apart == 0) {
          std::uint8_t& byte = four_bit.packed[i / 2];
          byte = static_cast<std::uint8_t>(i % 2 == 0 ? (byte & 0x0F) | 0x70 : (byte & 0xF0) | 0x07);
        }
      const Doubles w = reference::weights(four_bit.weight);
      for (const int exponent : {3, 4, 6, 8, 10, 14, 20, 40}) {
        std::vector<float> x = test::normal_weights(m * k, 1);
        for (std::size_t i = 0; i < x.size(); ++i)
          if (i % k % apart == 0) x[i] = std::ldexp(x[i], exponent);
        Case<FourBitWeight> product(four_bit.weight, DType::bf16, m, false);
        product.x = test::stored_as(DType::bf16, x);
        for_each_target([&](const std::string& target) {
          const Doubles y = as_doubles(DType::bf16, product.run(), n);
          EXPECT_LE(product.least_error(y, w), 1)
              << target << ", outliers of 2^" << exponent << ", " << apart << " apart, zero weights: " << is_zero;
        });
      }
    }
}

// Of the results that rounding the codebook changes, most are as if it were rounded.
TEST(Matmul, FewRowsInBf16AreMultipliedInIntegers) {
  const FourBit four_bit(1000, 1024, 64, Codebook::nf4, false);
  for (const std::size_t m : {1u, 16u}) {
    Case<FourBitWeight> product(four_bit.weight, DType::bf16, m, false);
    product.bias = Bytes(product.bias.size());
    const Doubles exact = product.expected(reference::weights(four_bit.weight));
    const Doubles rounded = product.expected(reference::rounded_to_int16(four_bit.weight));
    for_each_target([&](const std::string& target) {
      if (prefers_bf16() || (!code_kernel_int16() && !code_kernel_vnni())) return;
      const Doubles y = as_doubles(DType::bf16, product.run(), product.columns());
      std::size_t changed = 0, as_rounded = 0;
      for (std::size_t i = 0; i < y.values.size(); ++i) {
        const auto in_bf16 = [](double value) { return bf16::to_float(bf16::from_float(static_cast<float>(value))); };
        if (in_bf16(exact.values[i]) == in_bf16(rounded.values[i])) continue;
        ++changed;
        if (y.values[i] == static_cast<double>(in_bf16(rounded.values[i]))) ++as_rounded;
      }
      EXPECT_GT(changed, 10) << target;
      EXPECT_GE(4 * as_rounded, 3 * changed) << target << ", m = " << m;
    });
  }
}

TEST(Matmul, NonfiniteNumbersSpreadAsTheFormulaSays) {
  for (const float bad : {infinity, -infinity, nan})
    for (const std::size_t m : {1u, 5u, 40u})
      for (const DType dtype : types)
        for (const bool dx : {false, true}) {
          FourBit four_bit(11, 128, 64, Codebook::nf4, false);
          four_bit.absmax[5] = bad;
          expect_kinds(Case<FourBitWeight>(four_bit.weight, dtype, m, dx), "absmax");
          // Without a zero among the codes and with x of one sign, infinity stays infinity.
          std::fill(four_bit.packed.begin(), four_bit.packed.end(), std::uint8_t{0xF8});
          Case<FourBitWeight> positive(four_bit.weight, dtype, m, dx);
          positive.x = test::stored_as(dtype, std::vector<float>(m * positive.depth(), 1.5f));
          expect_kinds(positive, "absmax, positive");

          Int8 int8(11, 128);
          int8.absmax[3] = bad;
          expect_kinds(Case<Int8Weight>(int8.weight, dtype, m, dx), "SCB");
          std::fill(int8.codes.begin(), int8.codes.end(), std::int8_t{9});
          Case<Int8Weight> nines(int8.weight, dtype, m, dx);
          nines.x = positive.x;
          nines.x.resize(m * nines.depth() * (traits(dtype).bits / 8), std::byte{0});
          expect_kinds(nines, "SCB, positive");

          const FourBit plain(11, 128, 64, Codebook::nf4, false);
          Case<FourBitWeight> product(plain.weight, dtype, m, dx);
          std::vector<float> x = test::normal_weights(m * product.depth(), 1);
          x[x.size() - 3] = bad;
          product.x = test::stored_as(dtype, x);
          expect_kinds(product, "x");
        }
}

// An infinity of one row of x makes a thread compute sums of each of its tasks again. Other rows of x do not see it.
TEST(Matmul, OtherRowsOfXDoNotSeeAnInfinity) {
  constexpr std::size_t n = 100, k = 128, m = 2;
  const FourBit four_bit(n, k, 64, Codebook::nf4, true);
  const Int8 int8(n, k);
  const Executor at_once = [](std::size_t tasks, const auto& work) { work(0, tasks); };
  const auto check = [&](auto product, const std::string& target) {
    std::vector<float> x = test::normal_weights(m * k, 1);
    x[5] = infinity;
    product.x = test::stored_as(product.dtype, x);
    const Doubles w = reference::weights(product.weight), exact = product.expected(w);
    const Doubles y = as_doubles(product.dtype, product.run(at_once), n);
    for (std::size_t c = 0; c < n; ++c) ASSERT_EQ(kind(y(0, c)), kind(exact(0, c))) << target << ", column " << c;
    auto other = product;
    other.m = 1;
    other.x.erase(other.x.begin(), other.x.begin() + static_cast<std::ptrdiff_t>(other.x.size() / m));
    Doubles other_y(1, n);
    std::copy(y.values.begin() + n, y.values.end(), other_y.values.begin());
    ASSERT_LE(other.least_error(other_y, w), 1) << target;
  };
  for_each_target([&](const std::string& target) {
    for (const DType dtype : types) {
      check(Case<FourBitWeight>(four_bit.weight, dtype, m, false), target);
      check(Case<Int8Weight>(int8.weight, dtype, m, false), target);
    }
  });
}

// The rows of a task whose absmax is in another block of nested values are multiplied before and after.
TEST(Matmul, AnInfinityMayStartInTheMiddleOfATask) {
  constexpr std::size_t n = 70, k = 512, first = 16, end = 32;
  const FourBit good(n, k, 32, Codebook::nf4, true);
  FourBit bad(n, k, 32, Codebook::nf4, true);
  bad.nested_absmax[1] = infinity;
  for_each_target([&](const std::string& target) {
    for (const DType dtype : types)
      for (const std::size_t m : {1u, 3u}) {
        const Case<FourBitWeight> product(bad.weight, dtype, m, false);
        const Doubles exact = product.expected(reference::weights(bad.weight));
        const Doubles y = as_doubles(dtype, product.run(), n);
        const Doubles others = as_doubles(dtype, Case<FourBitWeight>(good.weight, dtype, m, false).run(), n);
        for (std::size_t i = 0; i < m; ++i)
          for (std::size_t c = 0; c < n; ++c) {
            const bool is_bad = c >= first && c < end;
            ASSERT_TRUE(is_bad ? kind(y(i, c)) == kind(exact(i, c)) : y(i, c) == others(i, c))
                << target << ", row " << i << ", column " << c;
          }
      }
  });
}

// An odd depth is filled up with a zero. What was in its place before, here an infinity of row 0, must not count.
TEST(Matmul, RowsDoNotSeeWhatOthersLeftBehind) {
  const FourBit weight(257, 64, 64, Codebook::nf4, false);
  Case<FourBitWeight> product(weight.weight, DType::bf16, 40, true);
  std::vector<float> x = test::normal_weights(40 * 257, 1);
  for (std::size_t i = 1; i < 60; i += 2) x[i] = infinity;
  x[5 * 257] = infinity;  // next to the last number of row 4
  product.x = test::stored_as(DType::bf16, x);
  expect_kinds(product, "x of rows 0 and 5");
}

// The same of a weight: an infinite one in that place times 0 would be NaN.
TEST(Matmul, WhatFillsAWordIsZero) {
  FourBit weight(2, 31, 64, Codebook::nf4, false);
  weight.absmax[0] = infinity;
  std::fill(weight.packed.begin(), weight.packed.end(), std::uint8_t{0xFF});
  Case<FourBitWeight> product(weight.weight, DType::bf16, 40, false);
  product.x = test::stored_as(DType::bf16, std::vector<float>(40 * 31, 1.5f));
  expect_kinds(product, "absmax");
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
