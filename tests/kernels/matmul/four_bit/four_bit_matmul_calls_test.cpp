// What a call of the product can ask for besides y = x * transposed(weight): sums into y, fp32, slices, several
// weights, experts, counters, launches that overlap; and what it refuses.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "kernels/host/matmul/four_bit/four_bit_matmul_config.hpp"
#include "tests/kernels/matmul/four_bit/four_bit_matmul_support.hpp"
#include "tests/kernels/schedules.hpp"

namespace nibble::kernels {
namespace {

using namespace device;
using test::expect_product;
using test::Problem;
using test::Product;
using test::Shape;

// One shape for tiles, one that is split, one for FourBitMatmulAny.
std::vector<Shape> shapes() {
  return {{.m = 3, .n = 40, .k = 192}, {.m = 5, .n = 33, .k = 64 * 40}, {.m = 10, .n = 12, .k = 70}};
}

TEST(FourBitMatmulCalls, SumsIntoY) {
  for (Shape shape : shapes()) {
    shape.accumulate = true;
    expect_product(shape, 1);
    shape.bias = true;
    shape.y_f32 = true;
    shape.y_stride = 3;
    expect_product(shape, 2);
  }
}

TEST(FourBitMatmulCalls, Fp32XAndY) {
  for (Shape shape : shapes()) {
    shape.x_f32 = true;
    shape.x_stride = 5;
    expect_product(shape, 3);
    shape.y_f32 = true;
    shape.dtype = NIBBLE_F16;
    expect_product(shape, 4);
  }
}

// The rounding of an fp32 y is that of the sums alone: what bf16 would lose is there.
TEST(FourBitMatmulCalls, Fp32YIsNotRounded) {
  const Problem problem({.m = 2, .n = 24, .k = 128, .y_f32 = true}, 5);
  const std::vector<float> y = Product(problem).product();
  int more_than_bf16 = 0;
  for (const float value : y) more_than_bf16 += test::rounded_to(NIBBLE_BF16, value) != value;
  EXPECT_GT(more_than_bf16, 40);
}

TEST(FourBitMatmulCalls, MoreRowsThanAKernelTakes) {
  expect_product({.m = 65, .n = 20, .k = 128}, 6);
  expect_product({.m = 130, .n = 20, .k = 192, .bias = true, .accumulate = true}, 7);
  expect_product({.m = 67, .n = 5, .k = 33}, 8);
}

// Rows and columns of a larger weight, whose blocks and nested absmax go on over the slice's ends.
TEST(FourBitMatmulCalls, Slices) {
  for (const std::size_t m : {1U, 12U, 40U}) {
    expect_product({.m = m, .n = 20, .k = 128, .first = 128 * 7}, 9);
    expect_product({.m = m, .n = 20, .k = 128, .first = 128, .gap = 128}, 10);
    expect_product({.m = m, .n = 20, .k = 192, .blocksize = 256, .nested = false, .first = 64, .gap = 320}, 11);
    expect_product({.m = m, .n = 20, .k = 64, .first = 33, .gap = 7}, 12);
    expect_product({.m = m, .n = 9, .k = 50, .blocksize = 32, .first = 13, .gap = 1}, 13);
  }
}

TEST(FourBitMatmulCalls, ASliceIsAPartOfTheWhole) {
  const Problem whole({.m = 3, .n = 20, .k = 128, .y_f32 = true}, 14);
  const std::vector<float> all = Product(whole).product();
  Problem slice = whole;
  slice.shape.n = 8;
  slice.shape.first = 12 * 128;
  const std::vector<float> part = Product(slice).product();
  for (std::size_t i = 0; i < 3; ++i)
    for (std::size_t j = 0; j < 8; ++j) EXPECT_EQ(part[i * 8 + j], all[i * 20 + 12 + j]);
}

// Experts without rows, with one, with more than a kernel takes; rows that nobody has; an end beyond m.
TEST(FourBitMatmulCalls, Experts) {
  expect_product({.m = 12, .n = 20, .k = 128, .ends = {0, 1, 1, 9, 12}}, 15);
  expect_product({.m = 12, .n = 20, .k = 128, .ends = {3, 10}}, 16);
  expect_product({.m = 90, .n = 20, .k = 128, .ends = {80, 80, 90}}, 17);
  expect_product({.m = 30, .n = 9, .k = 50, .accumulate = true, .ends = {2, 28}}, 18);
  Problem beyond({.m = 12, .n = 20, .k = 128, .ends = {4, 12}}, 19);
  const std::vector<float> expected = Product(beyond).product();
  beyond.shape.ends = {4, 4000};
  EXPECT_EQ(Product(beyond).product(), expected);
}

// The weights of q, k and v: one launch, the bytes of three calls.
TEST(FourBitMatmulCalls, WeightsThatShareX) {
  for (const std::size_t k : {192U, 64U * 40, 70U}) {
    const Problem q({.m = 5, .n = 40, .k = k, .bias = true}, 20), key({.m = 5, .n = 12, .k = k}, 21),
        value({.m = 5, .n = 33, .k = k, .bias = true}, 22);
    test::expect_shared_x({&q, &key, &value});
  }
}

// Three multiprocessors have six blocks of the kernel for few rows at a time, and three of that for many.
NIBBLE_SIMULATED_TEST(FourBitMatmulCalls, BlocksOfAllWeightsRunAtATime) {
  static thread_local device::Grid grid;
  const auto blocks_of = [](std::size_t m, unsigned multiprocessors, std::size_t n, std::size_t n_of_others) {
    device::simulator::Options options;
    options.multiprocessors = multiprocessors;
    options.part = [](device::Grid own) {
      grid = own;
      return device::simulator::BlockRange{0, ~std::uint64_t{0}};
    };
    const device::simulator::ScopedOptions scope(options);
    const std::size_t packed_offset = m > 64 ? 0 : 8;  // for wgmma, or not for TMA
    const Problem q({.m = m, .n = n, .k = 64, .packed_offset = packed_offset}, 31),
        key({.m = m, .n = n_of_others, .k = 64, .packed_offset = packed_offset}, 32),
        value({.m = m, .n = n_of_others, .k = 64, .packed_offset = packed_offset}, 33);
    test::expect_shared_x({&q, &key, &value});
    EXPECT_EQ(grid.z, 3U);
    return grid.x;
  };
  EXPECT_EQ(blocks_of(5, 3, 300, 300), 2U);
  EXPECT_EQ(blocks_of(5, 3, 300, 40), 4U) << "of 6, which leaves the others one each";
  EXPECT_EQ(blocks_of(66, 3, 300, 300), 1U);
  EXPECT_EQ(blocks_of(66, 5, 300, 40), 3U) << "of 5";
}

// However many blocks each of the weights has.
NIBBLE_SIMULATED_TEST(FourBitMatmulCalls, WeightsThatShareXHaveTheSameBytesOnDevicesOfAnySize) {
  for (const std::size_t m : {std::size_t{3}, std::size_t{70}}) {
    const Problem q({.m = m, .n = 300, .k = 64 * 10}, 34), key({.m = m, .n = 40, .k = 64 * 10}, 35),
        value({.m = m, .n = 70, .k = 64 * 10}, 36);
    std::vector<std::vector<float>> first;
    nibble::test::on_devices({1U, 3U, 5U, 144U}, {90U}, [&] {
      const std::vector<std::vector<float>> values = test::expect_shared_x({&q, &key, &value});
      if (first.empty()) first = values;
      EXPECT_EQ(values, first);
    });
  }
}

TEST(FourBitMatmulCalls, CountersAreLeftAsTheyWere) {
  test::expect_counters_to_stay<Product>(Problem({.m = 5, .n = 33, .k = 64 * 40, .packed_offset = 8}, 23));
}

TEST(FourBitMatmulCalls, LaunchesThatOverlap) {
  for (Shape shape : shapes()) {
    shape.overlap = true;
    shape.bias = true;
    expect_product(shape, 24);
    shape.x_f32 = true;
    shape.accumulate = true;
    expect_product(shape, 25);
  }
  expect_product({.m = 12, .n = 20, .k = 128, .overlap = true, .ends = {3, 3, 10}}, 26);
}

NIBBLE_SIMULATED_TEST(FourBitMatmulCalls, EverySynchronizationIsNeeded) {
  for (const Shape& shape : {Shape{.m = 3, .n = 20, .k = 64 * 40, .packed_offset = 8, .overlap = true},
                             Shape{.m = 12, .n = 20, .k = 128, .overlap = true, .ends = {3, 12}},
                             Shape{.m = 3, .n = 9, .k = 70, .overlap = true}})
    test::expect_every_synchronization_needed<Product>(Problem(shape, 27));
}

// The last weight has more rows than all blocks take at a time.
NIBBLE_SIMULATED_TEST(FourBitMatmulCalls, DevicesOfAnySizeGiveTheSameBytes) {
  for (const Shape& shape : {Shape{.m = 3, .n = 300, .k = 64 * 20, .packed_offset = 8},
                             Shape{.m = 20, .n = 300, .k = 64 * 20, .packed_offset = 8},
                             Shape{.m = 3, .n = 9500, .k = 64 * 2, .packed_offset = 8}}) {
    const Problem problem(shape, 28);
    test::expect_same_bytes<Product>(problem, {1U, 3U, 108U, 114U, 132U, 144U}, {80U, 90U});
    test::expect_same_bytes<Product>(problem, {3U, 84U}, {86U, 89U, 120U});
  }
}

// A multiprocessor of 8.6 or 12.0 has shared memory for one block with a table of 64 KiB. A second one would only begin
// when the first has ended, and then fill a table of its own.
NIBBLE_SIMULATED_TEST(FourBitMatmulCalls, NoBlockWaitsForSharedMemory) {
  static thread_local unsigned blocks;
  const Problem problem({.m = 8, .n = 32 * 40, .k = 64 * 2, .packed_offset = 8}, 28);
  const Product run(problem);
  const auto blocks_on = [&](unsigned capability) {
    device::simulator::Options options{.multiprocessors = 3, .capability = capability};
    options.part = [](device::Grid grid) {
      blocks = grid.x;
      return device::simulator::BlockRange{0, std::uint64_t{grid.x} * grid.y * grid.z};
    };
    const device::simulator::ScopedOptions scope(options);
    expect_values(problem, run.product());
    return blocks;
  };
  EXPECT_EQ(blocks_on(80), 6U);
  EXPECT_EQ(blocks_on(90), 6U);
  EXPECT_EQ(blocks_on(86), 3U);
  EXPECT_EQ(blocks_on(120), 3U);
}

// A block of 8.6, 8.9 or 12.0 may have 99 KiB of shared memory, static and dynamic. The static array is that of
// SplitSums::is_last: the simulator counts it only in kernels that divide k. Codes are aligned to 8 bytes, which is not
// enough for wgmma: all devices have the same kernel.
NIBBLE_SIMULATED_TEST(FourBitMatmulCalls, StaticSharedMemoryFitsBesideDynamic) {
  for (const std::size_t m : {1U, 12U, 20U, 40U})
    test::expect_same_bytes<Product>(Problem({.m = m, .n = 33, .k = 64 * 67, .packed_offset = 8}, 30), {3U},
                                     {86U, 89U, 120U});
}

// What a lane loaded for another tile multiplies the zeros beyond the end of k: an absmax of infinity would make NaN of
// them, in rows of the weight that do not have it.
NIBBLE_SIMULATED_TEST(FourBitMatmulCalls, AnInfiniteAbsmaxStaysInItsRow) {
  for (const Shape& shape :
       {Shape{.m = 8, .n = 300, .k = 64 * 33, .nested = false}, Shape{.m = 12, .n = 300, .k = 64 * 20, .nested = false},
        Shape{.m = 20, .n = 300, .k = 64 * 20, .nested = false},
        Shape{.m = 100, .n = 300, .k = 64 * 21, .nested = false},
        Shape{.m = 8, .n = 300, .k = 16 * 83, .nested = false}, Shape{.m = 20, .n = 300, .k = 16 * 83, .nested = false},
        Shape{.m = 20, .n = 300, .k = 32 * 41, .blocksize = 32, .nested = false}}) {
    const Problem finite(shape, 29);
    Problem infinite = finite;
    constexpr std::size_t rows = 32;  // of the weight, from the first on
    const auto blocks = static_cast<std::ptrdiff_t>(rows * shape.k / shape.blocksize + 1);
    std::fill(infinite.absmax.begin(), infinite.absmax.begin() + blocks, std::numeric_limits<float>::infinity());
    for (const unsigned multiprocessors : {1U, 2U, 3U, 4U, 5U}) {
      device::simulator::Options options;
      options.multiprocessors = multiprocessors;
      options.capability = shape.m > 64 ? 90 : 80;  // of 90, x of few rows is kept, and nothing beyond k is multiplied
      const device::simulator::ScopedOptions scope(options);
      const std::vector<float> expected = Product(finite).product(), values = Product(infinite).product();
      for (std::size_t i = 0; i < values.size(); ++i) {
        if (i % shape.n <= rows) continue;
        ASSERT_EQ(values[i], expected[i]) << testing::PrintToString(shape) << ", n " << i % shape.n;
      }
    }
  }
}

// -- Refusals

class Refusals : public testing::Test {
 protected:
  // What the product says; and the workspace's query says the same.
  std::string refusal() {
    std::size_t bytes = 0;
    matmul.x = &x;
    matmul.products = products;
    EXPECT_EQ(nibble_matmul_four_bit_workspace(&matmul, &bytes), NIBBLE_USAGE);
    std::string text = nibble_last_error();
    EXPECT_EQ(nibble_matmul_four_bit(&matmul, nullptr, 0, nullptr), NIBBLE_USAGE);
    EXPECT_EQ(nibble_last_error(), text);
    return text;
  }

  const Problem problem{{.m = 2, .n = 4, .k = 64}, 1};
  const Product run{problem};
  alignas(16) u16 memory[64] = {};
  nibble_four_bit weight = run.weight(), second = weight;
  nibble_matrix x{sizeof(nibble_matrix), NIBBLE_BF16, 2, 64, 64, memory},
      y{sizeof(nibble_matrix), NIBBLE_BF16, 2, 4, 4, memory};
  nibble_four_bit_product products[2] = {{sizeof(nibble_four_bit_product), &weight, nullptr, &y},
                                         {sizeof(nibble_four_bit_product), &second, nullptr, &y}};
  nibble_matmul matmul = run.call();
};
using FourBitMatmulRefusals = Refusals;

TEST_F(FourBitMatmulRefusals, Shapes) {
  x.rows = y.rows = 0;
  EXPECT_EQ(refusal(), "x.rows is 0, must be 1 to 2^31 - 1");
  x.rows = u64{1} << 31;
  EXPECT_EQ(refusal(), "x.rows is 2147483648, must be 1 to 2^31 - 1");
  x.rows = 2;
  EXPECT_EQ(refusal(), "y.rows is 0, x.rows is 2");
  y.rows = 2;
  y.columns = 3;
  EXPECT_EQ(refusal(), "y.columns is 3, weight.rows is 4");
  y.columns = 4;
  x.columns = 63;
  EXPECT_EQ(refusal(), "x.columns is 63, weight.columns is 64");
}

TEST_F(FourBitMatmulRefusals, Types) {
  y.dtype = NIBBLE_F16;
  EXPECT_EQ(refusal(), "y.dtype is F16, must be BF16 or F32");
  y.dtype = NIBBLE_BF16;
  matmul.compute_dtype = NIBBLE_F16;
  EXPECT_EQ(refusal(), "matmul.compute_dtype is F16, x.dtype is BF16");
  matmul.compute_dtype = NIBBLE_F32;
  x.dtype = NIBBLE_F32;
  EXPECT_EQ(refusal(), "matmul.compute_dtype is F32, must be F16 or BF16 for an x of F32");
}

TEST_F(FourBitMatmulRefusals, Structs) {
  matmul.struct_bytes = 8;
  EXPECT_EQ(refusal(), "matmul.struct_bytes is 8, not from " + std::to_string(offsetof(nibble_matmul, min_library_m)) +
                           " to 4096");
  matmul.struct_bytes = sizeof matmul;
  weight.struct_bytes = 0;
  EXPECT_EQ(refusal(), "weight.struct_bytes is 0, not from " + std::to_string(sizeof weight) + " to 4096");
  weight.struct_bytes = sizeof weight;
  y.struct_bytes = 47;
  EXPECT_EQ(refusal(), "y.struct_bytes is 47, not from 48 to 4096");
  y.struct_bytes = sizeof y;
  x.struct_bytes = 0;
  EXPECT_EQ(refusal(), "x.struct_bytes is 0, not from 48 to 4096");
  x.struct_bytes = sizeof x;
  products[0].struct_bytes = 24;
  EXPECT_EQ(refusal(), "matmul.products[0].struct_bytes is 24, not from 32 to 4096");
  products[0].struct_bytes = sizeof products[0];
  matmul.product_count = 2;
  products[1].struct_bytes = 40;
  EXPECT_EQ(refusal(), "matmul.products[1].struct_bytes is 40, matmul.products[0].struct_bytes is 32");
  EXPECT_EQ(nibble_matmul_four_bit(nullptr, nullptr, 0, nullptr), NIBBLE_USAGE);
  EXPECT_STREQ(nibble_last_error(), "matmul is null");
  EXPECT_EQ(nibble_matmul_four_bit_workspace(&matmul, nullptr), NIBBLE_USAGE);
  EXPECT_STREQ(nibble_last_error(), "bytes is null");
}

TEST_F(FourBitMatmulRefusals, Products) {
  matmul.product_count = 0;
  EXPECT_EQ(refusal(), "matmul.product_count is 0, must be 1 to 4");
  matmul.product_count = 5;
  EXPECT_EQ(refusal(), "matmul.product_count is 5, must be 1 to 4");
  matmul.product_count = 2;
  second.blocksize = 128;
  EXPECT_EQ(refusal(), "weight[1].blocksize is 128, weight[0].blocksize is 64");
  second = weight;
  second.codebook = NIBBLE_FP4;
  EXPECT_EQ(refusal(), "weight[1].codebook is not weight[0].codebook");
  second = weight;
  second.absmax = reinterpret_cast<const float*>(memory);
  second.absmax_codes = nullptr;
  second.nested_absmax = second.nested_codebook = second.nested_offset = nullptr;
  EXPECT_EQ(refusal(), "weight[1] and weight[0] do not both have nested absmax");
}

TEST_F(FourBitMatmulRefusals, ExpertsAndSlices) {
  u32 ends[2] = {1, 2};
  matmul.ends = ends;
  EXPECT_EQ(refusal(), "matmul.ends is given, must be null without experts");
  matmul.experts = 3;
  EXPECT_EQ(refusal(), "weight.rows is 4, no multiple of the 3 experts");
  matmul.experts = 2;
  EXPECT_EQ(refusal(), "y.columns is 4, weight has for each expert rows: 2");
  matmul.product_count = 2;
  EXPECT_EQ(refusal(), "matmul.product_count is 2, must be 1 with experts");
  matmul.product_count = 1;
  y.columns = 2;
  products[0].bias = memory;
  EXPECT_EQ(refusal(), "bias is given, must be null with experts");
  matmul.ends = nullptr;
  EXPECT_EQ(refusal(), "matmul.ends is null");
  matmul.experts = 65536;
  EXPECT_EQ(refusal(), "matmul.experts is 65536, at most 65535 are possible");
  matmul.experts = 0;
  weight.stride = 63;
  EXPECT_EQ(refusal(), "weight.stride is 63, less than its 64 columns");
  weight.stride = 64;
  weight.first = u64{1} << 48;
  EXPECT_EQ(refusal(), "weight.first is 281474976710656, beyond the 2^48 elements that are possible");
}

// The library does not show its configuration.
NIBBLE_SIMULATED_TEST(FourBitMatmulCalls, TheWorkspaceIsAskedFor) {
  const Problem problem({.m = 5, .n = 33, .k = 64 * 40}, 29);
  const Product run(problem);
  const nibble_four_bit weight = run.weight();
  const nibble_matrix x = run.x();
  const DeviceArray<u8> y_array = run.y();
  const nibble_matrix y = run.y_of(y_array);
  const nibble_four_bit_product product{sizeof(nibble_four_bit_product), &weight, nullptr, &y};
  nibble_matmul call = run.call();
  call.x = &x;
  call.products = &product;
  const std::size_t bytes = cuda::workspace_bytes(call);
  const u64 splits = four_bit_matmul::config_for(5, 33, 64 * 40, true).splits;
  EXPECT_GT(splits, 1U);
  EXPECT_EQ(bytes, NIBBLE_COUNTERS * 4 + splits * 5 * 33 * 4);
  EXPECT_EQ(nibble_matmul_four_bit(&call, nullptr, bytes - 1, nullptr), NIBBLE_USAGE);
  EXPECT_EQ(std::string(nibble_last_error()),
            "workspace_bytes is " + std::to_string(bytes - 1) + ", at least " + std::to_string(bytes) + " are needed");
}

}  // namespace
}  // namespace nibble::kernels
