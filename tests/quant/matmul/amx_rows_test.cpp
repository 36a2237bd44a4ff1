#include "quant/matmul/amx_rows.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <tuple>

#include "quant/matmul/amx/amx_weight.hpp"
#include "tests/quant/matmul/products.hpp"

namespace nibble::matmul {
namespace {

using products::as_doubles;
using products::Case;
using products::expect_product;
using products::FourBit;
using products::Int8;
using reference::Doubles;
using test::Bytes;

// Calls of an emulated kernel while it takes the place of the processor's.
struct Calls {
  static inline std::atomic<int> begun, ended, multiplied;

  Calls() {
    begun = ended = multiplied = 0;
    AmxKernel kernel = emulated::kernel();
    kernel.begin = [] { ++begun; };
    kernel.end = [] { ++ended; };
    kernel.multiply = [](const AmxOperands& operands, bool is_first, float* sums, std::size_t stride,
                         LinesAhead& ahead) {
      EXPECT_GT(begun, ended);
      ++multiplied;
      emulated::multiply(operands, is_first, sums, stride, ahead);
    };
    replace_amx_kernel(kernel);
  }
  ~Calls() { restore_amx_kernel(); }
  Calls(const Calls&) = delete;
  Calls& operator=(const Calls&) = delete;
};

template <class Weight> bool uses_tiles(const Weight& weight, DType dtype, std::size_t m, bool dx) {
  const Calls calls;
  (void)Case<Weight>(weight, dtype, m, dx).run();
  EXPECT_EQ(Calls::begun, Calls::ended);
  return Calls::multiplied > 0;
}

// The least number of rows that are multiplied in tiles; 0 if there is none up to 40.
template <class Weight> std::size_t min_m(const Weight& weight, DType dtype, bool dx) {
  for (std::size_t m = 1; m <= 40; ++m)
    if (uses_tiles(weight, dtype, m, dx)) return m;
  return 0;
}

TEST(AmxRows, AreMoreThanAFew) {
  const FourBit four_bit(96, 128, 64, Codebook::nf4, true);
  const Int8 int8(96, 128);
  for (const bool dx : {false, true}) {
    EXPECT_EQ(min_m(four_bit.weight, DType::bf16, dx), 5);
    EXPECT_EQ(min_m(four_bit.weight, DType::f16, dx), dx ? 10 : 12);
    EXPECT_EQ(min_m(four_bit.weight, DType::f32, dx), 0);
    for (const DType dtype : products::types)
      EXPECT_EQ(min_m(int8.weight, dtype, dx), dx ? 5 : dtype == DType::f32 ? 16 : 8);
  }
}

// The absmax of all rows of a task of y is decoded at once.
TEST(AmxRows, NestedAbsmaxOfARowFitsMemory) {
  const std::size_t k = (AmxFourBit::max_nested_blocks_of_row + 1) * 32;
  for (const bool nested : {false, true}) {
    const FourBit long_rows(2, k, 32, Codebook::nf4, nested);
    EXPECT_EQ(uses_tiles(long_rows.weight, DType::bf16, 5, false), !nested);
    EXPECT_TRUE(uses_tiles(long_rows.weight, DType::bf16, 5, true));
    EXPECT_TRUE(uses_tiles(FourBit(2, k - 32, 32, Codebook::nf4, nested).weight, DType::bf16, 5, false));
  }
}

// Around 16 rows of a tile, strips of 64 and 128 columns, 256 and 512 columns of a task, parts of 128 and 256 of the
// depth, and 512 rows; with parts that no decoder takes.
TEST(AmxRows, ProductsAreRight) {
  constexpr struct {
    std::size_t m, n, k;
  } shapes[] = {{8, 64, 64},   {17, 130, 320}, {33, 300, 96}, {8, 520, 192},
                {9, 100, 576}, {514, 40, 70},  {40, 33, 31},  {40, 520, 192}};
  for (const auto& [m, n, k] : shapes) {
    for (const std::size_t blocksize : {32u, 64u})
      expect_product(FourBit(n, k, blocksize, Codebook::fp4, blocksize == 64).weight, m, "FP4");
    expect_product(Int8(n, k).weight, m, "int8");
  }
}

// A block may be longer than a strip of columns, a part of the depth, or both.
TEST(AmxRows, BlocksMayBeLong) {
  constexpr struct { std::size_t k, blocksize; } shapes[] = {{384, 128}, {512, 256}, {1024, 512}, {2048, 2048}};
  for (const auto& [k, blocksize] : shapes)
    for (const std::size_t m : {8u, 40u})
      expect_product(FourBit(64, k, blocksize, Codebook::nf4, blocksize == 512).weight, m,
                     "blocksize " + std::to_string(blocksize));
}

// With k = 96, half of the last words of a row of the weight are 0, whatever the strip before had there.
TEST(AmxRows, InfinitiesStayInTheirColumns) {
  FourBit four_bit(128, 96, 32, Codebook::nf4, false);
  four_bit.absmax[3 * 3] = products::infinity;
  for (const std::size_t m : {8u, 40u}) {
    const Case<FourBitWeight> product(four_bit.weight, DType::bf16, m, false);
    products::expect_kinds(product, "an infinite absmax");
  }
}

// Sums of codes may be too large before absmax makes them smaller. Other loops take the place of tiles then.
TEST(AmxRows, SumsThatAreNotFiniteAreComputedInAnotherWay) {
  Int8 int8(64, 128);
  std::ranges::fill(int8.absmax, 0x1p-20f);
  std::ranges::fill(int8.codes, std::int8_t{100});
  const Doubles w = reference::weights(int8.weight);
  for (const DType dtype : {DType::bf16, DType::f32}) {
    Case<Int8Weight> product(int8.weight, dtype, 16, false);
    product.x = test::stored_as(dtype, std::vector<float>(16 * 128, 0x1p120f));
    EXPECT_TRUE(uses_tiles(int8.weight, dtype, 16, false));
    products::for_each_target([&](const std::string& target) {
      EXPECT_LE(product.least_error(as_doubles(dtype, product.run(), product.columns()), w), 1) << target;
    });
  }
}

// A 4-bit weight and x in fp16 have two terms, and the product of the second ones is left out. int8 codes have one.
TEST(AmxRows, ProductsOfTermsAreCounted) {
  const FourBit four_bit(64, 64, 64, Codebook::nf4, true);
  const Int8 int8(64, 64);
  for (const bool dx : {false, true})
    for (const auto& [dtype, of_four_bit, of_int8] :
         {std::tuple{DType::bf16, 1, dx ? 2 : 1}, std::tuple{DType::f16, 3, 2}, std::tuple{DType::f32, 0, 3}}) {
      (void)uses_tiles(four_bit.weight, dtype, 16, dx);
      EXPECT_EQ(Calls::multiplied, of_four_bit) << traits(dtype).name;
      (void)uses_tiles(int8.weight, dtype, 16, dx);
      EXPECT_EQ(Calls::multiplied, of_int8) << traits(dtype).name;
    }
}

// Terms below 2^-126 count as 0 in tiles. Small rows of x, or of dy * absmax / 127, would lose bits.
TEST(AmxRows, SmallNumbersKeepTheirBits) {
  const auto check = [](float x, float absmax, bool dx) {
    Int8 int8(64, 128);
    std::ranges::fill(int8.absmax, absmax);
    Case<Int8Weight> product(int8.weight, DType::f32, 16, dx);
    std::vector<float> numbers = test::normal_weights(16 * product.depth(), 1);
    for (float& number : numbers) number *= x;
    product.x = test::stored_as(DType::f32, numbers);
    product.bias.clear();
    const Doubles w = reference::weights(int8.weight), exact = product.expected(w);
    const Doubles magnitudes = product.expected(w, true);
    const Doubles y = as_doubles(DType::f32, product.run(), product.columns());
    for (std::size_t i = 0; i < y.values.size(); ++i)
      ASSERT_NEAR(y.values[i], exact.values[i], 1e-5 * magnitudes.values[i]) << "x " << x << ", absmax " << absmax;
  };
  for (const bool dx : {false, true})
    products::for_each_target([&](const std::string&) {
      check(0x1p-115f, 0x1p60f, dx);
      check(0x1p-60f, 0x1p-60f, dx);
    });
}

TEST(AmxRows, ZerosAreNotSmallNumbers) {
  const Int8 int8(64, 128);
  for (const bool dx : {false, true}) {
    const Calls calls;
    Case<Int8Weight> product(int8.weight, DType::f32, 16, dx);
    std::ranges::fill(product.x, std::byte{0});
    (void)product.run();
    EXPECT_GT(Calls::multiplied, 0);
  }
}

TEST(AmxRows, FactorsThatAreNotFiniteMeanOtherLoops) {
  Int8 int8(64, 128);
  int8.absmax[63] = 1e-31f;
  for (const bool dx : {false, true}) EXPECT_FALSE(uses_tiles(int8.weight, DType::bf16, 16, dx));
}

// Here, other rows do not change the bytes of a row, if all are finite. In other loops they do.
TEST(AmxRows, RowsDoNotDependOnEachOther) {
  const FourBit four_bit(200, 320, 64, Codebook::nf4, true);
  for (const bool dx : {false, true}) {
    const Calls calls;
    const Case<FourBitWeight> many(four_bit.weight, DType::bf16, 40, dx);
    Case<FourBitWeight> few = many;
    few.m = 7;
    few.x.resize(7 * few.depth() * 2);
    Bytes y = many.run();
    y.resize(7 * few.columns() * 2);
    EXPECT_EQ(few.run(), y) << (dx ? "dx" : "y");
  }
}

// Bit for bit, with the decoders of the processor.
TEST(AmxRows, TheProcessorMultipliesAsTheEmulation) {
  if (!amx_kernel()) GTEST_SKIP() << "this processor has no AMX tiles, or the system does not permit them";
  const FourBit four_bit(200, 320, 64, Codebook::nf4, true);
  const Int8 int8(200, 320);
  const auto check = [](const auto& product) {
    const Bytes of_processor = product.run();
    const Calls calls;
    EXPECT_EQ(product.run(), of_processor);
  };
  for (const bool dx : {false, true})
    for (const std::size_t m : {8u, 70u}) {
      check(Case<FourBitWeight>(four_bit.weight, DType::bf16, m, dx));
      check(Case<FourBitWeight>(four_bit.weight, DType::f16, m, dx));
      for (const DType dtype : products::types) check(Case<Int8Weight>(int8.weight, dtype, m, dx));
    }
}

}  // namespace
}  // namespace nibble::matmul
