// Products in bf16 that are multiplied in other types.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "nibble/bf16.hpp"
#include "tests/quant/matmul/products.hpp"

namespace nibble::matmul {
namespace {

using products::as_doubles;
using products::Case;
using products::for_each_target;
using products::FourBit;
using products::Int8;
using reference::Doubles;
using test::Bytes;

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
    const bool in_integers = products::multiplies_dx_in_integers();
    EXPECT_EQ(changed > 0, in_integers) << target << ", " << changed << " changed";
  });
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
      if (prefers_bf16() || amx_kernel() || (!code_kernel_int16() && !code_kernel_vnni())) return;
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

// Rounding int8 weights to bf16, as the loops in bf16 do, would change many of these results.
TEST(Matmul, FewRowsInBf16TakeInt8WeightsAsTheyAre) {
  const Int8 int8(1000, 1024);
  for (const std::size_t m : {1u, 4u}) {
    Case<Int8Weight> product(int8.weight, DType::bf16, m, false);
    product.bias = Bytes(product.bias.size());
    const Doubles exact = product.expected(reference::weights(int8.weight));
    for_each_target([&](const std::string& target) {
      const Doubles y = as_doubles(DType::bf16, product.run(), product.columns());
      std::size_t off = 0;
      for (std::size_t i = 0; i < y.values.size(); ++i)
        off +=
            y.values[i] != static_cast<double>(bf16::to_float(bf16::from_float(static_cast<float>(exact.values[i]))));
      EXPECT_LT(100 * off, y.values.size()) << target << ", m = " << m;
    });
  }
}

}  // namespace
}  // namespace nibble::matmul
