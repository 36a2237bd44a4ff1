// The product with a 4-bit weight: against fp64 over random shapes, and each synchronization turned off in turn. One
// file, because each test is a run of the same Product with other shapes or arguments.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/host/four_bit_weight.hpp"
#include "kernels/host/matmul/four_bit/four_bit_matmul_config.hpp"
#include "kernels/matmul/four_bit/four_bit_matmul.hpp"
#include "tests/kernels/matmul/four_bit/four_bit_matmul_support.hpp"
#include "tests/kernels/schedules.hpp"
#include "tests/simulator/array.hpp"

namespace nibble::kernels {
namespace {

using namespace device;
using nibble::test::in_schedules;
using nibble::test::survivors;
using test::expect_product;
using test::Problem;
using test::Product;
using test::rounded_to;
using test::Shape;

// FourBitMatmul needs codes aligned to 8 bytes, the kernels with TMA to 16: with this offset, devices of compute
// capability 9.0 have the former for any m.
constexpr std::size_t not_for_tma = 8;

// Every kernel at the borders of its range of m, with one tile and with several.
TEST(FourBitMatmul, MFromOneTo64) {
  u32 seed = 1;
  for (const std::size_t m : {1, 3, 4, 5, 8, 9, 16, 17, 31, 32, 33, 63, 64}) {
    expect_product({.m = m,
                    .n = 1 + 37 * (seed % 4),
                    .k = 64 * (1 + seed % 5),
                    .bias = seed % 2 == 0,
                    .packed_offset = not_for_tma},
                   seed + 1);
    ++seed;
  }
}

TEST(FourBitMatmul, RandomShapesThatFitTiles) {
  test::expect_random_products(40, 1, [](u32 i, auto& below) {
    const bool large = i % 8 == 0;
    return Shape{.m = 1 + below(large ? 64 : 20),
                 .n = 1 + below(large ? 140 : 80),
                 .k = 64 * (1 + below(large ? 18 : 9)),
                 .blocksize = 64u << below(7),
                 .x_stride = below(2) == 0 ? 8 * below(4) : 0,
                 .packed_offset = not_for_tma + 16 * below(2)};
  });
}

// Blocks that straddle rows, rows that begin within a byte, nothing aligned.
TEST(FourBitMatmul, RandomShapesThatDoNot) {
  test::expect_random_products(40, 2, [](u32 i, auto& below) {
    return Shape{.m = 1 + below(i % 8 == 0 ? 64 : 12),
                 .n = 1 + below(40),
                 .k = 1 + below(400),
                 .blocksize = 32u << below(8),
                 .x_stride = below(6),
                 .packed_offset = below(4)};
  });
}

// Rows of x that do not begin at 16 bytes, with everything else as the tiles need it.
TEST(FourBitMatmul, XOfAnyStride) {
  for (const std::size_t beyond : {1U, 4U, 7U, 8U})
    expect_product({.m = 3, .n = 20, .k = 128, .x_stride = beyond}, static_cast<u32>(beyond));
}

// The absmax that double quantization gives is a product and a sum, each rounded, as in the codecs: where the sum is 0,
// so is every weight. A fused multiply-add would leave what the product was rounded by.
TEST(FourBitMatmul, NestedAbsmaxIsRoundedTwice) {
  for (const std::size_t k : {64U, 65U})  // tiles, and what has none
    for (const std::size_t m : {1U, 20U})
      for (const u8 code : {u8{3}, u8{90}, u8{200}, u8{251}}) {
        Problem problem({.m = m, .n = 8, .k = k}, code);
        const float product = nested::codebook[code] * 0.0123f;
        ASSERT_NE(std::fma(nested::codebook[code], 0.0123f, -product), 0);
        std::fill(problem.absmax_codes.begin(), problem.absmax_codes.end(), code);
        std::fill(problem.nested_absmax.begin(), problem.nested_absmax.end(), 0.0123f);
        problem.offset = {-product};
        for (const float value : Product(problem).product()) ASSERT_EQ(value, 0) << k << ", " << int{code};
      }
}

// Small n and large k: blocks divide k between them, and the last of a tile adds the sums of the workspace.
TEST(FourBitMatmul, SplitK) {
  for (const std::size_t m : {1, 6, 12, 20, 40})
    expect_product({.m = m,
                    .n = 33,
                    .k = 64 * 67,
                    .bias = m == 6,
                    .packed_offset = not_for_tma,
                    .accumulate = m == 12,
                    .overlap = m == 1},
                   static_cast<u32>(m));
}

// Kernels by themselves: blocks that go through several steps, which the small shapes above are too small for; the ring
// of x comes round. Fewer blocks than tiles, so that a block takes several; m in chunks; and each synchronization is
// needed.
template <class Kernel> class Steps {
 public:
  Steps(std::size_t m, bool nested, std::size_t steps)
      : problem_({.m = m,
                  .n = 2 * Kernel::block_n + Kernel::block_n - 3,
                  .k = Kernel::block_k * steps + 64,
                  .nested = nested,
                  .overlap = true},
                 9),
        product_(problem_) {}

  [[nodiscard]] std::vector<float> run(u32 blocks = 2) const {
    const Shape& s = problem_.shape;
    const DeviceArray<u8> y = product_.y();
    const u32 m = static_cast<u32>(s.m);
    Kernel kernel{.product = {},
                  .x = reinterpret_cast<const bf16*>(product_.x().data),
                  .x_stride = static_cast<i64>(s.k),
                  .m = m,
                  .sums = {nullptr, nullptr, 1, 0},
                  .ends = nullptr};
    nibble_four_bit weight = product_.weight();
    weight.stride = weight.columns;
    const u32 tiles = static_cast<u32>(ceil_div<u64>(s.n, Kernel::block_n));
    kernel.product[0] = {operand_of(weight),
                         {nullptr, reinterpret_cast<bf16*>(y.data()), nullptr, static_cast<i64>(s.n), false},
                         0,
                         0,
                         std::min(blocks, tiles)};
    launch({blocks}, Kernel::shared_bytes(m, s.k), nullptr, kernel, Overlap::yes);
    return product_.values_in(y);
  }
  void expect_right() const {
    SCOPED_TRACE(testing::PrintToString(problem_.shape));
    std::vector<float> first;
    in_schedules([&] {
      const std::vector<float> result = run();
      if (first.empty()) first = result;
      ASSERT_EQ(result, first);
    });
    test::expect_values(problem_, first);
    EXPECT_THAT(survivors([&] { return run() == first; }, 4), testing::IsEmpty());
  }

 private:
  Problem problem_;
  Product product_;
};

template <FourBitMatmulTile tile, bool Nested, bool KeepsX = false>
void expect_steps(std::size_t m, std::size_t steps = 4) {
  Steps<FourBitMatmul<bf16, Nested, tile, KeepsX>>(m, Nested, steps).expect_right();
}

NIBBLE_SIMULATED_TEST(FourBitMatmul, ManySteps) {
  expect_steps<FourBitMatmulTile{1, 1, 8, 1}, true>(1);
  expect_steps<FourBitMatmulTile{1, 1, 8, 1}, false, true>(2, 3);
  expect_steps<FourBitMatmulTile{1, 1, 8}, true>(1);
  expect_steps<FourBitMatmulTile{1, 1, 8}, true, true>(2);
  expect_steps<FourBitMatmulTile{1, 2, 4}, false>(7);
  expect_steps<FourBitMatmulTile{1, 2, 4}, true, true>(3);
  expect_steps<FourBitMatmulTile{2, 2, 4}, true>(13);
  expect_steps<FourBitMatmulTile{2, 4, 2}, false>(16);
  expect_steps<FourBitMatmulTile{4, 4, 2}, true>(30);
  expect_steps<FourBitMatmulTile{8, 4, 2}, false>(61);
  expect_steps<FourBitMatmulTile{8, 8, 1}, true>(64);
}

// A block for each tile of n, as on devices without has_resident_grid, and more of them than there are tiles.
NIBBLE_SIMULATED_TEST(FourBitMatmul, ABlockForEachTile) {
  const Steps<FourBitMatmul<bf16, true, FourBitMatmulTile{1, 2, 4}, false>> few(7, true, 2);
  const Steps<FourBitMatmul<bf16, false, FourBitMatmulTile{8, 4, 2}, false>> chunks(81, false, 1);
  for (const u32 blocks : {1U, 3U, 5U}) {
    EXPECT_EQ(few.run(blocks), few.run());
    EXPECT_EQ(chunks.run(blocks), chunks.run());
  }
}

// After an odd number of steps, the second step of the last turn is past the end: it loads and multiplies nothing, and
// the next tile begins with a turn of its own. A tile of one or two steps has one turn.
NIBBLE_SIMULATED_TEST(FourBitMatmul, TurnsOfTwoSteps) {
  static_assert(FourBitMatmulTile{4, 4, 2}.turn_steps() == 2 && FourBitMatmulTile{2, 4, 2}.turn_steps() == 1);
  for (const std::size_t steps : {0U, 1U, 2U, 3U}) expect_steps<FourBitMatmulTile{4, 4, 2}, true>(17, steps);
  for (const std::size_t steps : {0U, 1U}) expect_steps<FourBitMatmulTile{8, 8, 1}, false>(33, steps);
}

// What bench/kernels/tune/tune.cpp may choose.
NIBBLE_SIMULATED_TEST(FourBitMatmul, VariantsOfTheLoop) {
  expect_steps<FourBitMatmulTile{1, 2, 4, 2, XBarrier::block}, true>(3);
  expect_steps<FourBitMatmulTile{2, 2, 4, 2, XBarrier::group, false}, true>(12);
  expect_steps<FourBitMatmulTile{4, 4, 2, 2, XBarrier::block, false, 1}, true>(20);
  expect_steps<FourBitMatmulTile{1, 1, 8, 2, XBarrier::group, true, 2}, true>(3);
  expect_steps<FourBitMatmulTile{1, 1, 8, 1, XBarrier::group, false}, true>(3);
  expect_steps<FourBitMatmulTile{1, 1, 8, 1, XBarrier::group, false}, false, true>(2, 3);
  expect_steps<FourBitMatmulTile{1, 1, 8, 1, XBarrier::group, true, 3}, true>(3);
}

// More rows of x than a kernel takes at a time.
NIBBLE_SIMULATED_TEST(FourBitMatmul, ChunksOfM) {
  expect_steps<FourBitMatmulTile{1, 1, 8, 1}, true>(9, 1);
  expect_steps<FourBitMatmulTile{2, 2, 4}, true>(33, 2);
  expect_steps<FourBitMatmulTile{4, 4, 2}, true>(41, 2);
  expect_steps<FourBitMatmulTile{8, 4, 2}, true>(81, 1);
}

// The larger n, the higher the tiles.
TEST(FourBitMatmul, LargeN) {
  for (const std::size_t m : {1, 4, 5, 9, 33})
    expect_product({.m = m, .n = 8193, .k = 64, .packed_offset = not_for_tma}, static_cast<u32>(m));
}

TEST(FourBitMatmul, NoInputsGiveTheBias) {
  const Problem problem({.m = 2, .n = 5, .k = 0, .nested = false, .bias = true}, 1);
  const std::vector<float> product = Product(problem).product();
  for (std::size_t i = 0; i < product.size(); ++i) EXPECT_EQ(product[i], problem.bias[i % 5]);
}

// The error against fp64 products of the exact weights, next to that of a product with the weights rounded to the type
// of x and sums in fp32: what a library would compute from a dequantized weight. Largest errors are of the 256 values
// of one m, averaged over m: the largest of all is a matter of luck.
TEST(FourBitMatmul, ErrorIsThatOfRoundedWeightsOrLess) {
  for (const nibble_dtype dtype : {NIBBLE_BF16, NIBBLE_F16})
    for (const nibble_codebook codebook : {NIBBLE_NF4, NIBBLE_FP4}) {
      const Problem p({.m = 32, .n = 256, .k = 1024, .dtype = dtype, .codebook = codebook}, 3);
      const std::vector<float> product = Product(p).product();
      double own = 0, own_max = 0, other = 0, other_max = 0;
      for (std::size_t at_m = 0; at_m < p.shape.m; ++at_m) {
        double row_max = 0, other_row_max = 0;
        for (std::size_t at_n = 0; at_n < p.shape.n; ++at_n) {
          double exact = 0;
          float sum = 0;
          for (std::size_t at_k = 0; at_k < p.shape.k; ++at_k) {
            const float weight = p.weight[at_n * p.shape.k + at_k];
            exact += double{weight} * double{p.x_at(p.shape, at_m, at_k)};
            sum += rounded_to(dtype, weight) * p.x_at(p.shape, at_m, at_k);
          }
          const double error = std::fabs(double{product[at_m * p.shape.n + at_n]} - exact);
          const double other_error = std::fabs(double{rounded_to(dtype, sum)} - exact);
          own += error * error;
          other += other_error * other_error;
          row_max = std::max(row_max, error);
          other_row_max = std::max(other_row_max, other_error);
        }
        own_max += row_max;
        other_max += other_row_max;
      }
      const double rms_ratio = std::sqrt(own / other), max_ratio = own_max / other_max;
      EXPECT_LE(rms_ratio, 1.1) << dtype << codebook;
      EXPECT_LE(max_ratio, 1.1) << dtype << codebook;
      RecordProperty((codebook == NIBBLE_NF4 ? "nf4_" : "fp4_") + std::string(dtype == NIBBLE_BF16 ? "bf16" : "fp16"),
                     std::to_string(rms_ratio) + " " + std::to_string(max_ratio));
    }
}

NIBBLE_SIMULATED_TEST(FourBitMatmul, EverySynchronizationIsNeeded) {
  for (const Shape& shape :
       {Shape{.m = 3, .n = 32, .k = 6144, .packed_offset = not_for_tma},
        Shape{.m = 12, .n = 40, .k = 1536, .packed_offset = not_for_tma},
        Shape{.m = 40, .n = 20, .k = 1024, .packed_offset = not_for_tma}, Shape{.m = 2, .n = 8, .k = 100}})
    test::expect_every_synchronization_needed<Product>(Problem(shape, 5));
}

}  // namespace
}  // namespace nibble::kernels
