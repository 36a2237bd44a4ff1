// Products of NaN and infinities.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/quant/matmul/products.hpp"

namespace nibble::matmul {
namespace {

using products::as_doubles;
using products::Case;
using products::expect_kinds;
using products::for_each_target;
using products::FourBit;
using products::infinity;
using products::Int8;
using products::kind;
using products::nan;
using products::types;
using reference::Doubles;

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

}  // namespace
}  // namespace nibble::matmul
