#include "kernels/host/library/widen.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
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
using device::u32;
using nibble::test::in_schedules;

float expected_of(bf16 value) { return nibble::bf16::to_float(value.bits); }
float expected_of(f16 value) { return fp16::to_float(value.bits); }

// Bits 0, `step`, 2 * step and so on.
template <class Half> void expect_widened(std::size_t n, u32 step, bool few_multiprocessors = false) {
  std::vector<Half> host(n);
  for (std::size_t i = 0; i < n; ++i) host[i].bits = static_cast<u16>(i * step);
  const auto in = DeviceArray<Half>::input(host, {.name = "in"});
  const auto run = [&] {
    const auto out = DeviceArray<float>::output(n, {.name = "out"});
    widen(in.data(), n, out.data(), nullptr);
    const std::vector<float> wide = out.to_host();
    for (std::size_t i = 0; i < n; ++i) {
      const float expected = expected_of(host[i]);
      ASSERT_TRUE(std::isnan(expected) ? std::isnan(wide[i])
                                       : std::bit_cast<u32>(wide[i]) == std::bit_cast<u32>(expected))
          << i << ": " << wide[i] << " for " << expected;
    }
  };
  few_multiprocessors ? nibble::test::on_devices({1U, 2U}, {90U}, run) : in_schedules(run);
}

TEST(Widen, AllValues) {
  expect_widened<bf16>(65536, 1);
  expect_widened<f16>(65536, 1);
}

TEST(Widen, AnyNumberOfValues) {
  for (const std::size_t n : {1U, 31U, 255U, 256U, 257U, 1000U}) {
    expect_widened<bf16>(n, 331);
    expect_widened<f16>(n, 331);
  }
}

// Eight blocks for each multiprocessor, of 256 values at a time.
TEST(Widen, MoreValuesThanThreads) {
  for (const std::size_t n : {2047U, 2048U, 2049U, 5000U}) expect_widened<f16>(n, 331, true);
}

}  // namespace
}  // namespace nibble::kernels
