#include "kernels/host/library/store_sums.hpp"

#include <gtest/gtest.h>

#include <array>
#include <type_traits>
#include <vector>

#include "nibble/bf16.hpp"
#include "nibble/fp16.hpp"
#include "tests/kernels/schedules.hpp"
#include "tests/simulator/array.hpp"

namespace nibble::kernels {
namespace {

using device::bf16;
using device::DeviceArray;
using device::f16;
using device::u16;
using nibble::test::in_schedules;

template <class Half> constexpr nibble_dtype dtype = std::is_same_v<Half, bf16> ? NIBBLE_BF16 : NIBBLE_F16;
u16 bits_of(bf16, float value) { return nibble::bf16::from_float(value); }
u16 bits_of(f16, float value) { return fp16::from_float(value); }
float value_of(bf16 half) { return nibble::bf16::to_float(half.bits); }
float value_of(f16 half) { return fp16::to_float(half.bits); }

// y is rounded once, after everything is added; what lies between its rows stays as it was.
template <class Half>
void expect_stored(std::size_t m, std::size_t n, std::size_t stride, bool few_multiprocessors = false) {
  const auto some = [](std::size_t i) { return static_cast<float>(i * 7919 % 4001) / 1000 - 2; };
  std::vector<float> sums(m * n);
  std::vector<Half> bias(n), before(m * stride);
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i] = some(i);
  for (std::size_t i = 0; i < bias.size(); ++i) bias[i].bits = bits_of(Half{}, some(i + 5));
  for (std::size_t i = 0; i < before.size(); ++i) before[i].bits = bits_of(Half{}, some(i + 9));
  const auto sums_array = DeviceArray<float>::input(sums, {.name = "sums"});
  const auto bias_array = DeviceArray<Half>::input(bias, {.name = "bias"});
  const auto run = [&] {
    const auto y = DeviceArray<Half>::workspace(before, {.name = "y"});
    store_sums(sums_array.data(), bias_array.data(), {sizeof(nibble_matrix), dtype<Half>, m, n, stride, y.data()},
               nullptr);
    const std::vector<Half> stored = y.to_host();
    for (std::size_t row = 0; row < m; ++row)
      for (std::size_t i = 0; i < stride; ++i) {
        const std::size_t at = row * stride + i;
        const float sum = i < n ? (sums[row * n + i] + value_of(bias[i])) + value_of(before[at]) : 0;
        ASSERT_EQ(stored[at].bits, i < n ? bits_of(Half{}, sum) : before[at].bits) << row << ", " << i;
      }
  };
  few_multiprocessors ? nibble::test::on_devices({1U, 2U}, {90U}, run) : in_schedules(run);
}

TEST(StoreSums, RowsWithAndWithoutGaps) {
  for (const auto& [m, n, stride] :
       {std::array<std::size_t, 3>{1, 1, 1}, {3, 255, 255}, {3, 256, 259}, {2, 257, 300}, {1, 1000, 1000}}) {
    expect_stored<bf16>(m, n, stride);
    expect_stored<f16>(m, n, stride);
  }
}

// Eight blocks for each multiprocessor, so a block takes several rows.
TEST(StoreSums, MoreRowsThanBlocks) {
  for (const std::size_t m : {7U, 8U, 9U, 40U}) expect_stored<bf16>(m, 20, 24, true);
}

}  // namespace
}  // namespace nibble::kernels
