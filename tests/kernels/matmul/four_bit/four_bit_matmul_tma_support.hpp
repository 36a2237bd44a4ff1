// Kernels that TMA feeds by themselves, as the library would not launch them for small shapes: blocks with several
// items, rings that come round, a last step that is short.
#pragma once
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/host/matmul/four_bit/four_bit_matmul_tma_launch.hpp"
#include "tests/kernels/matmul/four_bit/four_bit_matmul_support.hpp"
#include "tests/kernels/schedules.hpp"
#include "tests/simulator/array.hpp"

namespace nibble::kernels::test {

using device::bf16;
using device::ceil_div;

/// A product whose items two clusters of `splits` blocks take in turn, in one launch that overlaps with the
/// one before it. Kernel is for Half, and for nested absmax if `Nested`.
template <class Kernel, bool Nested, class Half = bf16> class TmaItems {
 public:
  TmaItems(const Shape& shape, u32 splits, u32 tile_n = Kernel::block_n)
      : splits_(splits), tile_n_(tile_n), problem_(with_overlap(shape), 9), product_(problem_) {}

  [[nodiscard]] std::vector<float> run() const {
    const Shape& s = problem_.shape;
    const DeviceArray<u8> y = product_.y();
    FourBitMatmulTmaLaunch<Half, Kernel> one(static_cast<const Half*>(product_.x().data), static_cast<i64>(s.k),
                                             static_cast<u32>(s.m), s.k, tile_n_, splits_);
    nibble_four_bit weight = product_.weight();
    weight.stride = weight.columns;
    one.add(weight, {nullptr, reinterpret_cast<Half*>(y.data()), nullptr, static_cast<i64>(s.n), false});
    one.run_with(2, nullptr, device::Overlap::yes);
    return product_.values_in(y);
  }
  [[nodiscard]] const Problem& problem() const { return problem_; }
  /// Also what run() has to give again.
  [[nodiscard]] std::vector<float> right_values() const {
    SCOPED_TRACE(testing::PrintToString(problem_.shape));
    std::vector<float> first;
    nibble::test::in_schedules([&] {
      const std::vector<float> result = run();
      if (first.empty()) first = result;
      EXPECT_EQ(result, first);
    });
    expect_values(problem_, first);
    return first;
  }

 private:
  static Shape with_overlap(Shape shape) {
    shape.nested = Nested;
    shape.dtype = std::is_same_v<Half, bf16> ? NIBBLE_BF16 : NIBBLE_F16;
    shape.overlap = true;
    return shape;
  }

  u32 splits_, tile_n_;
  Problem problem_;
  Product product_;
};

/// Whether the library multiplies in that file's kernel, on a device with these options. Another kernel's result has to
/// be right, too.
inline bool is_multiplied_in(const char* file, const Shape& shape, nibble::test::Options options = {}) {
  const Problem problem(shape, 30);
  const Product run(problem);
  options.record_sites = true;
  const device::simulator::ScopedOptions scope(options);
  expect_values(problem, run.product());
  const auto& sites = scope.sites();
  return std::any_of(sites.begin(), sites.end(), [&](const device::simulator::Site& site) {
    return device::simulator::where(site).find(file) != std::string::npos;
  });
}

/// Each synchronization is needed for one of the two.
template <class Items> void expect_all_needed(const Items& one, const Items& other) {
  const std::vector<float> values = one.right_values(), other_values = other.right_values();
  EXPECT_THAT(nibble::test::survivors([&] { return one.run() == values && other.run() == other_values; }, 4),
              testing::IsEmpty());
}

}  // namespace nibble::kernels::test
