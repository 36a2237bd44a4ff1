// nibble_dequantize_int8() against the CPU's decoder, bit for bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "nibble/int8.hpp"
#include "nibble/kernels.h"
#include "tests/kernels/quantize/dequantize_support.hpp"
#include "tests/kernels/schedules.hpp"
#include "tests/kernels/sparse_array.hpp"

namespace nibble::test {
namespace {

using testing::StrEq;

// Random codes; absmax values of every magnitude.
class Weight {
 public:
  Weight(u64 n, u64 k, u64 offset, std::mt19937_64& random)
      : k_(k),
        host_codes_(codes_of(n * k, random)),
        host_absmax_(absmax_of(n, random)),
        codes_(DeviceArray<std::int8_t>::input(host_codes_, {.offset_bytes = offset, .name = "codes"})),
        absmax_(DeviceArray<float>::input(host_absmax_, {.name = "absmax"})) {}

  [[nodiscard]] nibble_int8 argument() const {
    return {sizeof(nibble_int8), host_absmax_.size(), k_, codes_.data(), absmax_.data()};
  }
  [[nodiscard]] std::vector<u32> expected(nibble_dtype dtype, u64 first_row, u64 rows) const {
    std::vector<float> weights(rows * k_);
    for (u64 i = 0; i < rows; ++i)
      int8::decode_row(std::span(host_codes_).subspan((first_row + i) * k_, k_), host_absmax_[first_row + i],
                       std::span(weights).subspan(i * k_, k_));
    return rounded_bits(dtype, weights);
  }

 private:
  static std::vector<std::int8_t> codes_of(u64 n, std::mt19937_64& random) {
    std::vector<std::int8_t> codes(n);
    for (std::int8_t& code : codes) code = static_cast<std::int8_t>(random());
    return codes;
  }
  static std::vector<float> absmax_of(u64 n, std::mt19937_64& random) {
    std::uniform_int_distribution<int> exponent(-28, 18);
    std::vector<float> absmax(n);
    for (float& x : absmax) x = std::ldexp(1.0f + static_cast<float>(random() % 4096) / 4096, exponent(random));
    return absmax;
  }
  u64 k_;
  std::vector<std::int8_t> host_codes_;
  std::vector<float> host_absmax_;
  DeviceArray<std::int8_t> codes_;
  DeviceArray<float> absmax_;
};

void expect_equal(const Weight& weight, u64 first_row, u64 rows, nibble_dtype dtype, Layout layout) {
  const nibble_int8 argument = weight.argument();
  const Result result(dtype, rows, argument.columns, layout);
  const nibble_matrix out = result.matrix();
  ASSERT_EQ(nibble_dequantize_int8(&argument, first_row, &out, nullptr), NIBBLE_OK) << nibble_last_error();
  const std::vector<u32> bits = result.bits(), expected = weight.expected(dtype, first_row, rows);
  ASSERT_EQ(bits.size(), expected.size());
  for (std::size_t i = 0; i < bits.size(); ++i) ASSERT_EQ(bits[i], expected[i]) << "element " << i;
}

TEST(Int8Dequantize, EveryType) {
  std::mt19937_64 random(1);
  const Weight weight(9, 1024, 0, random);
  for (const nibble_dtype dtype : dtypes) expect_equal(weight, 0, 9, dtype, {});
}

TEST(Int8Dequantize, AnyShapeLayoutAndAlignment) {
  std::mt19937_64 random(2);
  const auto upto = [&random](u64 n) { return random() % (n + 1); };
  for (int i = 0; i < 80; ++i) {
    constexpr u64 units[] = {1, 4, 8, 64}, gaps[] = {0, 0, 8, 64, 1, 5};
    const u64 unit = units[upto(3)], all = 1 + upto(7), k = unit * (1 + upto(1100 / unit));
    const u64 codes_offset = upto(1) * upto(9), first_row = upto(1) * upto(all - 1);
    const u64 rows = upto(2) == 0 ? upto(all - first_row) : all - first_row;
    const Layout layout{gaps[upto(5)], upto(2) == 0 ? upto(9) : 0};
    const nibble_dtype dtype = dtypes[upto(2)];
    SCOPED_TRACE(testing::Message() << all << " x " << k << ", codes at byte " << codes_offset << ", rows from "
                                    << first_row << " on, " << rows << ", gap " << layout.gap << ", offset "
                                    << layout.offset << ", dtype " << dtype);
    const Weight weight(all, k, codes_offset, random);
    in_schedules([&] { expect_equal(weight, first_row, rows, dtype, layout); });
    if (testing::Test::HasFailure()) return;
  }
}

TEST(Int8Dequantize, LargerThanWhatRunsAtATime) {
  std::mt19937_64 random(3);
  const Weight weight(40, 3000, 0, random);
#if !defined(NIBBLE_ON_GPU)
  const device::simulator::ScopedOptions scope({.multiprocessors = 1});
#endif
  for (const nibble_dtype dtype : dtypes) {
    expect_equal(weight, 0, 40, dtype, {});
    expect_equal(weight, 1, 39, dtype, {.gap = 8});
    expect_equal(weight, 1, 39, dtype, {.gap = 1});
  }
}

TEST(Int8Dequantize, NothingToDoNeedsNoPointers) {
  nibble_int8 weight{.struct_bytes = sizeof(nibble_int8), .rows = 3, .columns = 0, .codes = nullptr, .absmax = nullptr};
  nibble_matrix out{.struct_bytes = sizeof(nibble_matrix),
                    .dtype = NIBBLE_F32,
                    .rows = 3,
                    .columns = 0,
                    .stride = 0,
                    .data = nullptr};
  EXPECT_EQ(nibble_dequantize_int8(&weight, 0, &out, nullptr), NIBBLE_OK);
  weight.columns = out.columns = out.stride = 64;
  weight.rows = out.rows = 0;
  EXPECT_EQ(nibble_dequantize_int8(&weight, 0, &out, nullptr), NIBBLE_OK);
}

TEST(Int8Dequantize, RefusesWhatMakesNoSense) {
  std::mt19937_64 random(4);
  const Weight weight(3, 64, 0, random);
  const nibble_int8 good = weight.argument();
  const Result result(NIBBLE_F16, 3, 64, {});
  nibble_matrix out = result.matrix();
  EXPECT_EQ(nibble_dequantize_int8(nullptr, 0, &out, nullptr), NIBBLE_USAGE);
  EXPECT_THAT(nibble_last_error(), StrEq("weight is null"));
  EXPECT_EQ(nibble_dequantize_int8(&good, 2, &out, nullptr), NIBBLE_USAGE);
  EXPECT_THAT(nibble_last_error(), StrEq("first_row is 2 and out has 3 rows, the weight has 3"));
  out.stride = 63;
  EXPECT_EQ(nibble_dequantize_int8(&good, 0, &out, nullptr), NIBBLE_USAGE);
  EXPECT_THAT(nibble_last_error(), StrEq("out.stride is 63, less than its 64 columns"));
}

// Three rows at the end of a weight of 2^32 elements and some, and a result whose rows are 2^32 elements apart.
NIBBLE_SIMULATED_TEST(Int8Dequantize, MoreThan32BitsCount) {
  constexpr u64 k = 4096, n = (u64{1} << 20) + 3, first_row = n - 3;
  const SparseArray<std::int8_t> codes(n * k);
  const SparseArray<float> absmax(n);
  std::mt19937_64 random(5);
  for (u64 i = first_row * k; i < n * k; ++i) codes.data()[i] = static_cast<std::int8_t>(random());
  for (u64 i = first_row; i < n; ++i) absmax.data()[i] = static_cast<float>(i - first_row + 1);

  const nibble_int8 weight{
      .struct_bytes = sizeof(nibble_int8), .rows = n, .columns = k, .codes = codes.data(), .absmax = absmax.data()};
  for (const u64 more : {u64{0}, u64{1}}) {  // whole vectors, and weight by weight
    const u64 stride = (u64{1} << 32) + more;
    const SparseArray<float> memory(2 * stride + k);
    const nibble_matrix out{.struct_bytes = sizeof(nibble_matrix),
                            .dtype = NIBBLE_F32,
                            .rows = 3,
                            .columns = k,
                            .stride = stride,
                            .data = memory.data()};
    ASSERT_EQ(nibble_dequantize_int8(&weight, first_row, &out, nullptr), NIBBLE_OK) << nibble_last_error();
    for (u64 row = 0; row < 3; ++row) {
      std::vector<float> expected(k);
      int8::decode_row(std::span(codes.data() + (first_row + row) * k, k), static_cast<float>(row + 1), expected);
      for (u64 i = 0; i < k; ++i) ASSERT_EQ(memory.data()[row * stride + i], expected[i]) << row << ", " << i;
    }
  }
}

}  // namespace
}  // namespace nibble::test
