// The product with weights whose absmax changes after fewer than 64 of k, or within a row at any 16 or 8: blocks of 32,
// and a k, a first element or a stride that is a multiple of 32, 16 or 8. They have tensor cores, too.
#include "kernels/matmul/four_bit/four_bit_matmul_run.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/host/matmul/four_bit/four_bit_matmul_arguments.hpp"
#include "tests/kernels/matmul/four_bit/four_bit_matmul_support.hpp"
#include "tests/kernels/schedules.hpp"
#include "tests/simulator/array.hpp"

namespace nibble::kernels {
namespace {

using namespace device;
using test::expect_product;
using test::Problem;
using test::Product;
using test::Shape;

// Every m at the borders of a kernel's range, with one tile of n and with several.
TEST(FourBitMatmulRun, MFromOneTo70) {
  u32 seed = 1;
  for (const std::size_t m : {1, 3, 8, 9, 16, 17, 32, 33, 64, 70})
    for (const std::size_t run : {32U, 16U, 8U}) {
      expect_product({.m = m,
                      .n = 1 + 37 * (seed % 4),
                      .k = 2 * run * (1 + seed % 5) + run,
                      .blocksize = 32u << seed % 3,
                      .nested = seed % 3 != 0,
                      .bias = seed % 2 == 0},
                     seed);
      ++seed;
    }
}

TEST(FourBitMatmulRun, RandomShapes) {
  test::expect_random_products(64, 3, [](u32 i, auto& below) {
    const bool large = i % 8 == 0;
    const std::size_t run = 8u << i % 3;
    return Shape{.m = 1 + below(large ? 64 : 20),
                 .n = 1 + below(large ? 140 : 80),
                 .k = run * (1 + below(large ? 70 : 30)),
                 .blocksize = 32u << below(8),
                 .x_stride = below(2) == 0 ? 8 * below(4) : 0,
                 .packed_offset = 4 * below(3),
                 .first = below(2) == 0 ? run * below(9) : 0,
                 .gap = below(2) == 0 ? run * below(5) : 0};
  });
}

// Each k of a group, alone: x is 1 there, and 0 elsewhere, so that a weight in another place, or with another absmax,
// gives another product.
TEST(FourBitMatmulRun, EachWeightMeetsItsXAndItsAbsmax) {
  for (const std::uint32_t blocksize : {32U, 64U, 128U})
    for (const std::size_t k : {96U, 208U, 136U})
      for (const std::size_t m : {8U, 32U}) {
        Problem problem({.m = m, .n = 20, .k = k, .blocksize = blocksize, .nested = false, .y_f32 = true}, 7);
        for (std::size_t first = 0; first < k; first += m) {
          std::fill(problem.x.begin(), problem.x.end(), 0.0f);
          for (std::size_t i = 0; i < m && first + i < k; ++i) problem.x[i * k + first + i] = 1;
          const std::vector<float> y = Product(problem).product();
          for (std::size_t i = 0; i < m && first + i < k; ++i)
            for (std::size_t j = 0; j < 20; ++j) {
              const std::size_t element = j * k + first + i;
              const u32 byte = problem.packed[element / 2], code = element % 2 == 0 ? byte >> 4 : byte & 15;
              ASSERT_EQ(y[i * 20 + j],
                        test::rounded_to(NIBBLE_BF16, nf4::codebook.value[code]) * problem.absmax[element / blocksize])
                  << blocksize << ", k " << first + i << " of " << k << ", n " << j;
            }
        }
      }
}

// The k of a SigLIP's second linear layer, half of it, and one with blocks of 32; with few n, several blocks divide k.
TEST(FourBitMatmulRun, SplitK) {
  for (const std::size_t m : {1U, 12U, 40U}) {
    expect_product({.m = m, .n = 33, .k = 4304, .bias = m == 1, .overlap = m == 1}, static_cast<u32>(m));
    expect_product({.m = m, .n = 33, .k = 2152, .nested = m != 12, .overlap = m == 40}, static_cast<u32>(m + 2));
    expect_product({.m = m, .n = 33, .k = 4096, .blocksize = 32, .accumulate = m == 12}, static_cast<u32>(m + 1));
  }
}

TEST(FourBitMatmulRun, CallsOfAllKinds) {
  for (const std::uint32_t blocksize : {32U, 64U})
    for (const std::size_t k : {160U, 176U, 168U}) {
      const Shape shape{.m = 10, .n = 20, .k = k, .blocksize = blocksize};
      Shape other = shape;
      other.x_f32 = other.y_f32 = other.accumulate = other.overlap = true;
      expect_product(other, 1);
      other = shape;
      other.ends = {0, 1, 1, 9};
      expect_product(other, 2);
      other.m = 50;
      other.overlap = true;
      other.ends = {41, 43};
      expect_product(other, 3);
    }
}

NIBBLE_SIMULATED_TEST(FourBitMatmulRun, DevicesOfAnySizeGiveTheSameBytes) {
  for (const Shape& shape : {Shape{.m = 3, .n = 300, .k = 64 * 20, .blocksize = 32},
                             Shape{.m = 20, .n = 300, .k = 1072}, Shape{.m = 5, .n = 300, .k = 1000}})
    test::expect_same_bytes<Product>(Problem(shape, 28), {1U, 3U, 108U, 144U}, {80U, 90U});
}

// Codes that are copied two steps ahead, from one tile of n into the next, and from 32 of m into the next 32: with one
// step of k, with an odd and with an even number. An expert's k is never split.
NIBBLE_SIMULATED_TEST(FourBitMatmulRun, CodesOfTheNextTileAreCopied) {
  static_assert(four_bit_matmul::choices_of_short_runs.back().tile.copies_codes());
  device::simulator::Options options;
  options.multiprocessors = 1;
  const device::simulator::ScopedOptions scope(options);
  for (const std::size_t k : {200U, 264U, 520U})
    expect_product({.m = 33, .n = 128 + 5, .k = k, .nested = k != 520, .ends = {33}}, static_cast<u32>(k));
}

NIBBLE_SIMULATED_TEST(FourBitMatmulRun, EverySynchronizationIsNeeded) {
  for (const Shape& shape :
       {Shape{.m = 3, .n = 32, .k = 1536, .blocksize = 32, .overlap = true}, Shape{.m = 20, .n = 40, .k = 1040},
        Shape{.m = 5, .n = 40, .k = 1544}, Shape{.m = 20, .n = 40, .k = 1032, .overlap = true}})
    test::expect_every_synchronization_needed<Product>(Problem(shape, 5));
}

// -- Which kernel

// The sources of the kernels that ran: those in which a synchronization is.
std::string kernel_of(const Shape& shape) {
  const Problem problem(shape, 1);
  const Product run(problem);
  device::simulator::Options options;
  options.record_sites = true;
  const device::simulator::ScopedOptions scope(options);
  EXPECT_FALSE(run.product().empty());
  bool tiles = false, any = false;
  for (const device::simulator::Site& site : scope.sites()) {
    const std::string where = device::simulator::where(site);
    for (const char* const file : {"four_bit_matmul.hpp", "four_bit_matmul_few_rows.hpp"})
      tiles |= where.find(file) != std::string::npos;
    any |= where.find("four_bit_matmul_any.hpp") != std::string::npos;
  }
  return tiles && any ? "both" : tiles ? "tensor cores" : any ? "any" : "none";
}

NIBBLE_SIMULATED_TEST(FourBitMatmulRun, KIsAMultipleOf8OrHasNoTensorCores) {
  for (const std::size_t k : {8U, 16U, 24U, 32U, 48U, 64U, 72U, 80U, 96U, 112U, 120U, 128U})
    for (const std::uint32_t blocksize : {32U, 64U, 4096U})
      EXPECT_EQ(kernel_of({.m = 3, .n = 20, .k = k, .blocksize = blocksize}), "tensor cores") << k << ", " << blocksize;
  for (const std::size_t k : {1U, 4U, 12U, 65U, 100U})
    EXPECT_EQ(kernel_of({.m = 3, .n = 20, .k = k, .x_stride = 16 - k % 8}), "any") << k;
  const Shape shape{.m = 3, .n = 20, .k = 80};
  for (const auto& [first, gap, packed_offset, x_stride, kernel] :
       std::vector<std::tuple<std::size_t, std::size_t, std::size_t, std::size_t, std::string>>{
           {16, 0, 0, 0, "tensor cores"},
           {0, 16, 0, 0, "tensor cores"},
           {16, 16, 4, 8, "tensor cores"},
           {8, 0, 0, 0, "tensor cores"},
           {0, 8, 0, 0, "tensor cores"},
           {4, 0, 0, 0, "any"},
           {0, 4, 0, 0, "any"},
           {0, 0, 2, 0, "any"},
           {0, 0, 0, 4, "any"}}) {
    Shape other = shape;
    other.first = first;
    other.gap = gap;
    other.packed_offset = packed_offset;
    other.x_stride = x_stride;
    EXPECT_EQ(kernel_of(other), kernel) << testing::PrintToString(other);
  }
}

// The library does not show its arguments.
NIBBLE_SIMULATED_TEST(FourBitMatmulRun, IsAsLongAsAllWeightsAllow) {
  struct Case {
    u32 blocksize;
    std::size_t k, first, gap, packed_offset;
    u32 run;
  };
  const auto run_of = [](const std::vector<Case>& cases) {
    std::vector<Problem> problems;
    for (const Case& c : cases)
      problems.emplace_back(Shape{.m = 2,
                                  .n = 4,
                                  .k = c.k,
                                  .blocksize = c.blocksize,
                                  .packed_offset = c.packed_offset,
                                  .first = c.first,
                                  .gap = c.gap},
                            1);
    std::vector<Product> products;
    for (const Problem& problem : problems) products.emplace_back(problem);
    std::vector<nibble_four_bit> weights;
    for (const Product& product : products) weights.push_back(product.weight());
    const nibble_matrix x = products[0].x();
    const DeviceArray<u8> y_array = products[0].y();
    const nibble_matrix y = products[0].y_of(y_array);
    std::vector<nibble_four_bit_product> of_call;
    for (const nibble_four_bit& weight : weights)
      of_call.push_back({sizeof(nibble_four_bit_product), &weight, nullptr, &y});
    nibble_matmul call = products[0].call();
    call.x = &x;
    call.products = of_call.data();
    call.product_count = static_cast<u32>(of_call.size());
    const FourBitMatmulArguments arguments(call);
    EXPECT_EQ(arguments.fits_tiles, arguments.run > 0);
    EXPECT_EQ(arguments.config.tile.run, arguments.run > 0 ? arguments.run : 64);
    return arguments.run;
  };
  for (const Case& c : std::vector<Case>{
           {64, 128, 0, 0, 0, 64},
           {4096, 64, 64, 64, 8, 64},
           {32, 128, 0, 0, 0, 32},
           {64, 96, 0, 0, 0, 32},
           {64, 64, 32, 0, 0, 32},
           {64, 64, 0, 32, 0, 32},
           {64, 64, 0, 0, 4, 32},
           {64, 80, 0, 0, 0, 16},
           {32, 64, 16, 0, 0, 16},
           {64, 64, 0, 16, 0, 16},
           {64, 72, 0, 0, 0, 8},
           {32, 64, 8, 0, 0, 8},
           {64, 64, 0, 8, 0, 8},
           {64, 64, 0, 8, 4, 8},
           {64, 64, 0, 4, 0, 0},
           {64, 68, 0, 0, 0, 0},
           {64, 64, 0, 0, 2, 0},
           {64, 0, 0, 0, 0, 0},
       })
    EXPECT_EQ(run_of({c}), c.run) << c.blocksize << ", " << c.k << ", " << c.first << ", " << c.gap;
  const Case whole{64, 64, 0, 0, 0, 64}, of_32{64, 64, 32, 0, 0, 32}, of_16{64, 64, 16, 0, 0, 16},
      of_8{64, 64, 8, 0, 0, 8}, odd{64, 64, 1, 0, 0, 0};
  EXPECT_EQ(run_of({whole, whole}), 64U);
  EXPECT_EQ(run_of({whole, of_32}), 32U);
  EXPECT_EQ(run_of({of_16, of_32, whole}), 16U);
  EXPECT_EQ(run_of({of_32, of_8, of_16}), 8U);
  EXPECT_EQ(run_of({whole, odd}), 0U);
}

// A run's number has 32 bits.
NIBBLE_SIMULATED_TEST(FourBitMatmulRun, IsCountedIn32Bits) {
  const Problem problem({.m = 1, .n = 1, .k = 16}, 1);
  const Product product(problem);
  nibble_four_bit weight = product.weight();
  const nibble_matrix x = product.x();
  const DeviceArray<u8> y_array = product.y();
  const nibble_matrix y = product.y_of(y_array);
  const nibble_four_bit_product of_call{sizeof(nibble_four_bit_product), &weight, nullptr, &y};
  nibble_matmul call = product.call();
  call.x = &x;
  call.products = &of_call;
  weight.first = (u64{1} << 36) - 32;
  EXPECT_EQ(FourBitMatmulArguments(call).run, 16U);
  weight.first += 16;
  EXPECT_EQ(FourBitMatmulArguments(call).run, 0U);
  weight.first = (u64{1} << 35) - 24;
  EXPECT_EQ(FourBitMatmulArguments(call).run, 8U);
  weight.first += 16;
  EXPECT_EQ(FourBitMatmulArguments(call).run, 0U);
}

}  // namespace
}  // namespace nibble::kernels
