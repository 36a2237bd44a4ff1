#include "kernels/host/matmul/round_rows.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
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

u16 expected_of(bf16, float value) { return nibble::bf16::from_float(value); }
u16 expected_of(f16, float value) { return fp16::from_float(value); }

// Values between two of Half, beyond its range and below its smallest, and what lies between rows, which nobody may
// read.
template <class Half>
void expect_rounded(std::size_t m, std::size_t k, std::size_t stride, bool few_multiprocessors = false) {
  std::vector<float> host(m * stride);
  for (std::size_t i = 0; i < host.size(); ++i)
    host[i] = std::ldexp(static_cast<float>(i * 7919 % 4001) - 2000.5f, static_cast<int>(i % 45) - 30);
  host[0] = std::numeric_limits<float>::infinity();
  const auto in = DeviceArray<float>::input(host, {.name = "x"});
  const auto run = [&] {
    const auto out = DeviceArray<Half>::output(m * k, {.name = "out"});
    round_rows({sizeof(nibble_matrix), NIBBLE_F32, m, k, stride, in.data()}, out.data(), nullptr);
    const std::vector<Half> rounded = out.to_host();
    for (std::size_t row = 0; row < m; ++row)
      for (std::size_t i = 0; i < k; ++i)
        ASSERT_EQ(rounded[row * k + i].bits, expected_of(Half{}, host[row * stride + i])) << row << ", " << i;
  };
  few_multiprocessors ? nibble::test::on_devices({1U, 2U}, {90U}, run) : in_schedules(run);
}

TEST(RoundRows, RowsWithAndWithoutGaps) {
  for (const auto& [m, k, stride] :
       {std::array<std::size_t, 3>{1, 1, 1}, {3, 255, 255}, {3, 256, 259}, {2, 257, 300}, {1, 1000, 1000}}) {
    expect_rounded<bf16>(m, k, stride);
    expect_rounded<f16>(m, k, stride);
  }
}

// Eight blocks for each multiprocessor, so a block takes several rows.
TEST(RoundRows, MoreRowsThanBlocks) {
  for (const std::size_t m : {7U, 8U, 9U, 40U}) expect_rounded<bf16>(m, 20, 24, true);
}

}  // namespace
}  // namespace nibble::kernels
