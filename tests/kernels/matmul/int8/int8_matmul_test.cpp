// The product with an int8 weight: against fp64 over random shapes, each synchronization turned off in turn, what a
// call can ask for, and what it refuses.
#include "kernels/matmul/int8/int8_matmul.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/host/matmul/int8/int8_matmul_arguments.hpp"
#include "kernels/host/matmul/int8/int8_matmul_config.hpp"
#include "tests/kernels/matmul/int8/int8_matmul_support.hpp"
#include "tests/kernels/schedules.hpp"

namespace nibble::kernels {
namespace {

using namespace device;
using nibble::test::in_schedules;
using nibble::test::survivors;
using test::expect_int8_product;
using test::Int8Problem;
using test::Int8Run;
using test::Int8Shape;

// -- The codes as 16-bit floats

template <class Half> struct AllPairs {
  static constexpr u32 threads = 256;
  Global<u32x2> out;
  NIBBLE_DEVICE void operator()() const {
    const u32 first = thread_id(), second = (first * 7 + 3) % 256;
    const u32 word = first | second << 8 | (255 - first) << 16 | (255 - second) << 24;
    st(out + thread_id(), u32x2{int8_pair<Half, 0>(word), int8_pair<Half, 1>(word)});
  }
};

template <class Half> void expect_exact_codes() {
  const auto out = DeviceArray<u32x2>::output(256);
  launch({1}, 0, nullptr, AllPairs<Half>{out.data()});
  const std::vector<u32x2> pairs = out.to_host();
  const auto value = [](u32 bits) { return to_float(Half{static_cast<u16>(bits)}); };
  for (u32 i = 0; i < 256; ++i) {
    const u32 second = (i * 7 + 3) % 256;
    const auto code = [](u32 byte) { return static_cast<float>(static_cast<i8>(byte)); };
    EXPECT_EQ(value(pairs[i].x), code(i));
    EXPECT_EQ(value(pairs[i].x >> 16), code(second));
    EXPECT_EQ(value(pairs[i].y), code(255 - i));
    EXPECT_EQ(value(pairs[i].y >> 16), code(255 - second));
  }
}

NIBBLE_SIMULATED_TEST(Int8Matmul, EveryCodeIsExact) {
  expect_exact_codes<bf16>();
  expect_exact_codes<f16>();
}

// With one x of 1, the others 0, and an absmax of 127 the product is the code itself.
TEST(Int8Matmul, ProductsOfEveryCode) {
  for (const nibble_dtype dtype : {NIBBLE_BF16, NIBBLE_F16})
    for (const std::size_t k : {32U, 33U}) {
      Int8Problem problem({.m = 1, .n = 256, .k = k, .dtype = dtype}, 1);
      for (std::size_t i = 0; i < 256; ++i) problem.codes[i * k + 5] = static_cast<i8>(i);
      std::fill(problem.absmax.begin(), problem.absmax.end(), 127.0f);
      std::fill(problem.x.begin(), problem.x.end(), 0.0f);
      problem.x[5] = 1;
      const std::vector<float> y = Int8Run(problem).product();
      for (std::size_t i = 0; i < 256; ++i) EXPECT_EQ(y[i], static_cast<float>(static_cast<i8>(i)));
    }
}

// -- Values

// Every kernel at the borders of its range of m, with one tile and with several.
TEST(Int8Matmul, MFromOneTo64) {
  u32 seed = 1;
  for (const std::size_t m : {1, 3, 7, 8, 9, 16, 17, 31, 32, 33, 63, 64}) {
    expect_int8_product({.m = m,
                         .n = 1 + 37 * (seed % 4),
                         .k = 16 * (1 + 7 * (seed % 5)),
                         .bias = seed % 2 == 0,
                         .dtype = seed % 3 == 0 ? NIBBLE_F16 : NIBBLE_BF16},
                        seed);
    ++seed;
  }
}

TEST(Int8Matmul, RandomShapes) {
  std::mt19937 random(5);
  const auto below = [&](u32 n) { return random() % n; };
  for (u32 i = 0; i < 30; ++i) {
    const bool fits = i % 2 == 0;
    expect_int8_product({.m = 1 + below(70),
                         .n = 1 + below(90),
                         .k = fits ? 16 * (1 + below(60)) : 1 + below(300),
                         .bias = below(2) == 0,
                         .dtype = below(2) == 0 ? NIBBLE_BF16 : NIBBLE_F16,
                         .x_stride = fits ? 8 * below(3) : below(6),
                         .y_stride = below(5),
                         .codes_offset = fits ? 16 * below(2) : below(16),
                         .x_f32 = below(4) == 0,
                         .y_f32 = below(3) == 0,
                         .accumulate = below(3) == 0,
                         .overlap = below(3) == 0},
                        100 + i);
  }
}

// What tiles need, but for one thing.
TEST(Int8Matmul, FallsBackWhereTilesDoNotFit) {
  const Int8Shape fits{.m = 3, .n = 20, .k = 128};
  for (const std::size_t beyond : {1U, 2U, 4U, 7U}) {
    Int8Shape shape = fits;
    shape.x_stride = beyond;
    expect_int8_product(shape, 1);
    shape = fits;
    shape.codes_offset = beyond;
    expect_int8_product(shape, 2);
    shape = fits;
    shape.k += beyond;
    expect_int8_product(shape, 3);
  }
}

// Rows that are aligned to 8 bytes: each kernel, and k that ends in the first or in the second half of a lane's 16
// codes.
TEST(Int8Matmul, LoadsEightBytesWhereRowsAreNotAlignedTo16) {
  u32 seed = 50;
  for (const std::size_t m : {1, 4, 8, 13, 16, 30, 33, 64, 70})
    for (const std::size_t k : {8U, 24U, 72U, 136U, 2152U, 4304U})
      expect_int8_product({.m = m,
                           .n = 1 + 41 * (seed % 3),
                           .k = k,
                           .dtype = seed % 2 == 0 ? NIBBLE_F16 : NIBBLE_BF16,
                           .codes_offset = k == 4304 ? 8U : 0U},
                          seed++);
}

// The same order of additions: what loads bring is the same.
TEST(Int8Matmul, TheBytesDoNotDependOnTheAlignmentOfCodes) {
  for (const std::size_t m : {2, 12, 40}) {
    const Int8Shape shape{.m = m, .n = 70, .k = 4304};
    Int8Shape other = shape;
    other.codes_offset = 8;
    const Int8Problem aligned(shape, 77), unaligned(other, 77);
    EXPECT_EQ(Int8Run(aligned).product(), Int8Run(unaligned).product());
  }
}

NIBBLE_SIMULATED_TEST(Int8Matmul, OnlyRowsThatAreNotAlignedTo8BytesNeedTheSlowKernel) {
  const auto arguments = [](const Int8Shape& shape) {
    const Int8Problem problem(shape, 3);
    const Int8Run run(problem);
    return run.with_call(run.y(), [](const nibble_matmul& call, const nibble_int8_product& product) {
      const Int8MatmulArguments found(call, &product);
      return std::pair(found.fits_tiles, found.config.tile.load_bytes);
    });
  };
  EXPECT_EQ(arguments({.m = 3, .n = 4, .k = 4304}), std::pair(true, 16U));
  EXPECT_EQ(arguments({.m = 3, .n = 4, .k = 2152}), std::pair(true, 8U));
  EXPECT_EQ(arguments({.m = 3, .n = 4, .k = 4304, .codes_offset = 8}), std::pair(true, 8U));
  EXPECT_EQ(arguments({.m = 3, .n = 4, .k = 4304, .codes_offset = 4}), std::pair(false, 0U));
  EXPECT_EQ(arguments({.m = 3, .n = 4, .k = 2148}), std::pair(false, 0U));
  EXPECT_FALSE(arguments({.m = 3, .n = 4, .k = 2152, .x_stride = 4}).first);
}

// Small n and large k: blocks divide k between them, and the last of a tile adds the sums of the workspace.
TEST(Int8Matmul, SplitK) {
  for (const std::size_t m : {1, 6, 12, 20, 40})
    expect_int8_product({.m = m, .n = 33, .k = 16 * 301, .bias = m == 6, .accumulate = m == 12, .overlap = m == 1},
                        static_cast<u32>(m));
}

NIBBLE_SIMULATED_TEST(Int8Matmul, SplitKIsWhatTheShapesAboveGet) {
  for (const u64 m : {1U, 6U, 12U, 20U, 40U}) EXPECT_GT(int8_matmul::config_for(m, 33, 16 * 301).splits, 1U) << m;
}

TEST(Int8Matmul, MoreRowsThanAKernelTakes) {
  expect_int8_product({.m = 65, .n = 20, .k = 128}, 6);
  expect_int8_product({.m = 130, .n = 20, .k = 192, .bias = true, .accumulate = true}, 7);
  expect_int8_product({.m = 67, .n = 5, .k = 33}, 8);
}

TEST(Int8Matmul, LargeN) {
  for (const std::size_t m : {1, 9, 33}) expect_int8_product({.m = m, .n = 8193, .k = 64}, static_cast<u32>(m));
}

TEST(Int8Matmul, NoInputsGiveTheBias) {
  Int8Problem problem({.m = 2, .n = 5, .k = 0, .bias = true}, 1);
  std::fill(problem.absmax.begin(), problem.absmax.end(), std::numeric_limits<float>::infinity());
  const std::vector<float> product = Int8Run(problem).product();
  for (std::size_t i = 0; i < product.size(); ++i) EXPECT_EQ(product[i], problem.bias[i % 5]);
}

// A row of zeros has absmax 0; the scale is the quotient rounded once, and multiplies the sum once.
TEST(Int8Matmul, TheScaleIsRoundedOnce) {
  for (const std::size_t k : {16U, 17U}) {
    Int8Problem problem({.m = 1, .n = 64, .k = k, .y_f32 = true}, 3);
    std::fill(problem.x.begin(), problem.x.end(), 0.0f);
    problem.x[2] = 1;
    problem.absmax[7] = 0;
    problem.absmax[8] = 1e-44f;
    problem.absmax[9] = 3e38f;
    const std::vector<float> y = Int8Run(problem).product();
    int as_the_codec_does = 0;
    for (std::size_t i = 0; i < 64; ++i) {
      const auto code = static_cast<float>(problem.codes[i * k + 2]);
      EXPECT_EQ(y[i], code * (problem.absmax[i] / 127.0f));
      as_the_codec_does += y[i] == code * problem.absmax[i] * (1 / 127.0f);
    }
    EXPECT_LT(as_the_codec_does, 64);
  }
}

// -- Synchronization

// Kernels by themselves: blocks that go through several steps, which the small shapes above are too small for; the ring
// of x comes round. Fewer blocks than tiles, so that a block takes several; m in chunks; and each synchronization is
// needed.
template <Int8MatmulTile tile> void expect_steps(std::size_t m, std::size_t steps = 4) {
  using Kernel = Int8Matmul<bf16, tile>;
  const std::size_t k = Kernel::block_k * steps + 48 + tile.load_bytes % 16;
  const Int8Problem problem({.m = m, .n = 3 * Kernel::block_n - 3, .k = k, .overlap = true}, 9);
  SCOPED_TRACE(testing::PrintToString(problem.shape));
  const Int8Run run(problem);
  const auto product = [&] {
    const Int8Shape& s = problem.shape;
    const DeviceArray<u8> y = run.y();
    const nibble_int8 weight = run.weight();
    const u32 rows = static_cast<u32>(m);
    launch(
        {2}, Kernel::shared_bytes(rows), nullptr,
        Kernel{{reinterpret_cast<const u8*>(weight.codes), weight.absmax, static_cast<i64>(s.n), static_cast<i64>(s.k)},
               reinterpret_cast<const bf16*>(run.x().data),
               static_cast<i64>(s.k),
               rows,
               {nullptr, reinterpret_cast<bf16*>(y.data()), nullptr, static_cast<i64>(s.n), false},
               {nullptr, nullptr, 1, 0}},
        Overlap::yes);
    return run.values_in(y);
  };
  std::vector<float> first;
  in_schedules([&] {
    const std::vector<float> result = product();
    if (first.empty()) first = result;
    ASSERT_EQ(result, first);
  });
  test::expect_values(problem, first);
  EXPECT_THAT(survivors([&] { return product() == first; }, 4), testing::IsEmpty());
}

NIBBLE_SIMULATED_TEST(Int8Matmul, ManySteps) {
  using int8_matmul::choices;
  expect_steps<choices[0].tile>(5);
  expect_steps<choices[1].tile>(1, 2);
  expect_steps<choices[2].tile>(13);
  expect_steps<choices[3].tile>(30);
  expect_steps<choices[4].tile>(61);
}

NIBBLE_SIMULATED_TEST(Int8Matmul, ManyStepsOfShortLoads) {
  using int8_matmul::choices;
  constexpr auto with_short_loads = [](Int8MatmulTile tile) {
    tile.load_bytes = 8;
    return tile;
  };
  expect_steps<with_short_loads(choices[0].tile)>(5);
  expect_steps<with_short_loads(choices[4].tile)>(61);
}

NIBBLE_SIMULATED_TEST(Int8Matmul, ChunksOfM) {
  using int8_matmul::choices;
  expect_steps<choices[1].tile>(11, 1);
  expect_steps<choices[2].tile>(33, 1);
}

NIBBLE_SIMULATED_TEST(Int8Matmul, EverySynchronizationIsNeeded) {
  for (const Int8Shape& shape :
       {Int8Shape{.m = 3, .n = 32, .k = 4096, .overlap = true}, Int8Shape{.m = 12, .n = 40, .k = 2048},
        Int8Shape{.m = 40, .n = 20, .k = 1024}, Int8Shape{.m = 3, .n = 9, .k = 70, .overlap = true}})
    test::expect_every_synchronization_needed<Int8Run>(Int8Problem(shape, 5));
}

NIBBLE_SIMULATED_TEST(Int8Matmul, DevicesOfAnySizeGiveTheSameBytes) {
  for (const Int8Shape& shape : {Int8Shape{.m = 3, .n = 300, .k = 1280}, Int8Shape{.m = 20, .n = 300, .k = 1280}})
    test::expect_same_bytes<Int8Run>(Int8Problem(shape, 28), {1U, 3U, 108U, 114U, 132U, 144U}, {80U, 90U});
}

TEST(Int8Matmul, CountersAreLeftAsTheyWere) {
  test::expect_counters_to_stay<Int8Run>(Int8Problem({.m = 5, .n = 33, .k = 2560}, 23));
}

// -- Refusals

class Int8MatmulRefusals : public testing::Test {
 protected:
  // What the product says; and the workspace's query says the same.
  std::string refusal() {
    std::size_t bytes = 0;
    matmul.x = &x;
    EXPECT_EQ(nibble_matmul_int8_workspace(&matmul, &product, &bytes), NIBBLE_USAGE);
    std::string text = nibble_last_error();
    EXPECT_EQ(nibble_matmul_int8(&matmul, &product, nullptr, 0, nullptr), NIBBLE_USAGE);
    EXPECT_EQ(nibble_last_error(), text);
    return text;
  }

  const Int8Problem problem{{.m = 2, .n = 4, .k = 64}, 1};
  const Int8Run run{problem};
  alignas(16) u16 memory[64] = {};
  nibble_int8 weight = run.weight();
  nibble_matrix x{sizeof(nibble_matrix), NIBBLE_BF16, 2, 64, 64, memory},
      y{sizeof(nibble_matrix), NIBBLE_BF16, 2, 4, 4, memory};
  nibble_int8_product product{sizeof(nibble_int8_product), &weight, nullptr, &y};
  nibble_matmul matmul = run.call();
};

TEST_F(Int8MatmulRefusals, ShapesAndTypes) {
  x.rows = 0;
  EXPECT_EQ(refusal(), "x.rows is 0, must be 1 to 2^31 - 1");
  x.rows = 3;
  EXPECT_EQ(refusal(), "y.rows is 2, x.rows is 3");
  x.rows = 2;
  y.columns = 3;
  EXPECT_EQ(refusal(), "y.columns is 3, weight.rows is 4");
  y.columns = 4;
  x.columns = 63;
  EXPECT_EQ(refusal(), "x.columns is 63, weight.columns is 64");
  x.columns = 64;
  y.dtype = NIBBLE_F16;
  EXPECT_EQ(refusal(), "y.dtype is F16, must be BF16 or F32");
  y.dtype = NIBBLE_BF16;
  matmul.compute_dtype = NIBBLE_F16;
  EXPECT_EQ(refusal(), "matmul.compute_dtype is F16, x.dtype is BF16");
  matmul.compute_dtype = NIBBLE_F32;
  weight.rows = u64{1} << 31;
  EXPECT_EQ(refusal(), "weight.rows is 2147483648, must be less than 2^31");
}

TEST_F(Int8MatmulRefusals, Structs) {
  product.struct_bytes = 24;
  EXPECT_EQ(refusal(), "product.struct_bytes is 24, not from 32 to 4096");
  product.struct_bytes = sizeof product;
  weight.struct_bytes = sizeof weight - 8;
  EXPECT_EQ(refusal(), "weight.struct_bytes is 32, not from 40 to 4096");
}

TEST_F(Int8MatmulRefusals, WhatOnlyFourBitWeightsCanDo) {
  nibble_four_bit_product four_bit{};
  u32 ends[1] = {2};
  matmul.products = &four_bit;
  EXPECT_EQ(refusal(), "matmul.products is given, must be null with an int8 weight");
  matmul.products = nullptr;
  matmul.product_count = 2;
  EXPECT_EQ(refusal(), "matmul.product_count is 2, must be 0 with an int8 weight");
  matmul.product_count = 0;
  matmul.experts = 2;
  EXPECT_EQ(refusal(), "matmul.experts is 2, must be 0 with an int8 weight");
  matmul.experts = 0;
  matmul.ends = ends;
  EXPECT_EQ(refusal(), "matmul.ends is given, must be null without experts");
}

TEST_F(Int8MatmulRefusals, Pointers) {
  weight.codes = nullptr;
  EXPECT_EQ(refusal(), "weight.codes is null");
  weight = run.weight();
  weight.absmax = nullptr;
  EXPECT_EQ(refusal(), "weight.absmax is null");
  weight = run.weight();
  product.bias = reinterpret_cast<const u8*>(memory) + 1;
  EXPECT_EQ(refusal(), "bias is 1 bytes past a multiple of 2, its alignment");
  product.bias = nullptr;
  matmul.counters = reinterpret_cast<u32*>(&memory[1]);
  EXPECT_EQ(refusal(), "matmul.counters is 2 bytes past a multiple of 4, its alignment");
  matmul.counters = nullptr;
  product.y = nullptr;
  EXPECT_EQ(refusal(), "y is null");
  product.weight = nullptr;
  EXPECT_EQ(refusal(), "weight is null");
  EXPECT_EQ(nibble_matmul_int8(&matmul, nullptr, nullptr, 0, nullptr), NIBBLE_USAGE);
  EXPECT_STREQ(nibble_last_error(), "product is null");
  EXPECT_EQ(nibble_matmul_int8(nullptr, &product, nullptr, 0, nullptr), NIBBLE_USAGE);
  EXPECT_STREQ(nibble_last_error(), "matmul is null");
  EXPECT_EQ(nibble_matmul_int8_workspace(&matmul, &product, nullptr), NIBBLE_USAGE);
  EXPECT_STREQ(nibble_last_error(), "bytes is null");
}

// The library does not show its configuration.
NIBBLE_SIMULATED_TEST(Int8Matmul, TheWorkspaceIsAskedFor) {
  const Int8Problem problem({.m = 5, .n = 33, .k = 2560, .x_f32 = true}, 29);
  const Int8Run run(problem);
  run.with_call(run.y(), [](const nibble_matmul& call, const nibble_int8_product& product) {
    const std::size_t bytes = cuda::workspace_bytes(call, product);
    const u64 splits = int8_matmul::config_for(5, 33, 2560).splits;
    EXPECT_GT(splits, 1U);
    EXPECT_EQ(bytes, 5 * 2560 * 2 + NIBBLE_COUNTERS * 4 + splits * 5 * 33 * 4);
    EXPECT_EQ(nibble_matmul_int8(&call, &product, nullptr, bytes - 1, nullptr), NIBBLE_USAGE);
    EXPECT_EQ(std::string(nibble_last_error()), "workspace_bytes is " + std::to_string(bytes - 1) + ", at least " +
                                                    std::to_string(bytes) + " are needed");
  });
}

}  // namespace
}  // namespace nibble::kernels
