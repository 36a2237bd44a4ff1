// Products with quantized weights of every form, for tests: values of the types, and x, the bias and y of a call.
//
// A form has its own shape, with the members that MatmulValues and MatmulRun name, and its own problem, which is made
// of a MatmulValues and the weight. Its expected_at(problem, m, n) says what the product should be.
#pragma once
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstring>
#include <initializer_list>
#include <random>
#include <vector>

#include "kernels/device/device.hpp"
#include "nibble/kernels.h"
#include "tests/kernels/schedules.hpp"
#include "tests/simulator/array.hpp"

namespace nibble::kernels::test {

using namespace device;

inline float value_of(nibble_dtype dtype, u16 bits) {
  return dtype == NIBBLE_BF16 ? to_float(bf16{bits}) : to_float(f16{bits});
}
inline u16 bits_in(nibble_dtype dtype, float value) {
  return dtype == NIBBLE_BF16 ? to_bf16(value).bits : to_f16(value).bits;
}
inline float rounded_to(nibble_dtype dtype, float value) { return value_of(dtype, bits_in(dtype, value)); }

// Values of a type as their bytes.
inline std::vector<u8> bytes_of(const std::vector<float>& values, bool f32, nibble_dtype dtype) {
  std::vector<u8> bytes(values.size() * (f32 ? 4 : 2));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const u16 bits = bits_in(dtype, values[i]);
    f32 ? std::memcpy(&bytes[4 * i], &values[i], 4) : std::memcpy(&bytes[2 * i], &bits, 2);
  }
  return bytes;
}
inline std::vector<float> values_of(const std::vector<u8>& bytes, bool f32, nibble_dtype dtype) {
  std::vector<float> values(bytes.size() / (f32 ? 4 : 2));
  for (std::size_t i = 0; i < values.size(); ++i) {
    u16 bits = 0;
    f32 ? std::memcpy(&values[i], &bytes[4 * i], 4) : std::memcpy(&bits, &bytes[2 * i], 2);
    if (!f32) values[i] = value_of(dtype, bits);
  }
  return values;
}

// What a weight is multiplied with, and what is added: normal values that the types hold.
struct MatmulValues {
  std::vector<float> x, bias, y;  // y: what it has before

  template <class Shape> void fill(const Shape& s, std::mt19937& random, std::normal_distribution<float>& normal) {
    x.resize(s.m * (s.k + s.x_stride));
    for (float& value : x) value = s.x_f32 ? normal(random) : rounded_to(s.dtype, normal(random));
    if (s.bias) bias.resize(s.n);
    for (float& value : bias) value = rounded_to(s.dtype, normal(random));
    if (s.accumulate) y.resize(s.m * (s.n + s.y_stride));
    for (float& value : y) value = s.y_f32 ? normal(random) : rounded_to(s.dtype, normal(random));
  }

  // As it is multiplied.
  template <class Shape> [[nodiscard]] float x_at(const Shape& s, std::size_t at_m, std::size_t at_k) const {
    return rounded_to(s.dtype, x[at_m * (s.k + s.x_stride) + at_k]);
  }
};

// What a product should be, and how far it may be from that.
struct Expected {
  double value, tolerance;
};

// The exact sum for one value of y, and that of the magnitudes of its terms: of weight(l) * x[at_m][l] for each l, and
// of what is added.
struct ExactSum {
  double value = 0, magnitude = 0;

  template <class Problem, class Weight>
  ExactSum(const Problem& p, std::size_t at_m, std::size_t at_n, const Weight& weight) {
    const auto& s = p.shape;
    for (std::size_t at_k = 0; at_k < s.k; ++at_k) add(weight(at_k) * double{p.x_at(s, at_m, at_k)});
    if (s.bias) add(double{p.bias[at_n]});
    if (s.accumulate) add(double{p.y[at_m * (s.n + s.y_stride) + at_n]});
  }

 private:
  void add(double term) {
    value += term;
    magnitude += std::fabs(term);
  }
};

template <class Problem> void expect_values(const Problem& problem, const std::vector<float>& values) {
  const std::size_t n = problem.shape.n;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!problem.writes(i / n)) continue;
    const Expected expected = expected_at(problem, i / n, i % n);
    ASSERT_NEAR(values[i], expected.value, expected.tolerance) << "m " << i / n << ", n " << i % n;
  }
}

// Calls run.product() in all schedules, which must not change a bit.
template <class Problem, class Run> void expect_product_in_schedules(const Problem& problem, const Run& run) {
  std::vector<float> first;
  nibble::test::in_schedules([&] {
    const std::vector<float> product = run.product();
    if (!first.empty()) {
      ASSERT_EQ(product, first) << "the schedule decides";
      return;
    }
    first = product;
    expect_values(problem, product);
  });
}

// The product is wrong or fails, in some schedule, without any one of its synchronizations.
template <class Run, class Problem> void expect_every_synchronization_needed(const Problem& problem) {
  SCOPED_TRACE(testing::PrintToString(problem.shape));
  const Run run(problem);
  const std::vector<float> expected = run.product();
  EXPECT_THAT(nibble::test::survivors([&] { return run.product() == expected; }, 6), testing::IsEmpty());
}

// The order of additions, and so the bytes, do not depend on the device.
template <class Run, class Problem>
void expect_same_bytes(const Problem& problem, std::initializer_list<unsigned> multiprocessors,
                       std::initializer_list<unsigned> capabilities) {
  SCOPED_TRACE(testing::PrintToString(problem.shape));
  const Run run(problem);
  const std::vector<float> expected = run.product();
  nibble::test::on_devices(multiprocessors, capabilities, [&] { EXPECT_EQ(run.product(), expected); });
}

// A product that divides k leaves the caller's counters as they were, so the next one can use them.
template <class Run, class Problem> void expect_counters_to_stay(const Problem& problem) {
  const Run run(problem);
  const std::vector<float> expected = run.product();
  const auto counters = DeviceArray<u32>::workspace(std::vector<u32>(NIBBLE_COUNTERS), {.name = "counters"});
  for (int i = 0; i < 3; ++i) EXPECT_EQ(run.product(counters.data()), expected);
  EXPECT_THAT(counters.to_host(), testing::Each(0U));
}

// The arrays of a problem on the device: those that do not depend on the weight's form.
template <class Problem> class MatmulRun {
 public:
  [[nodiscard]] nibble_matrix x() const {
    const auto& s = p_.shape;
    return {sizeof(nibble_matrix), s.x_f32 ? NIBBLE_F32 : s.dtype, s.m, s.k, s.k + s.x_stride, x_.data()};
  }
  [[nodiscard]] const void* bias() const { return p_.shape.bias ? bias_.data() : nullptr; }

  // A y for this product, as it is before: written once unless there is more to it.
  [[nodiscard]] DeviceArray<u8> y() const {
    const auto& s = p_.shape;
    if (s.accumulate) return DeviceArray<u8>::workspace(bytes_of(p_.y, s.y_f32, s.dtype), {.name = "y"});
    const std::size_t bytes = s.m * (s.n + s.y_stride) * (s.y_f32 ? 4 : 2);
    if (s.y_stride == 0 && p_.writes_all()) return DeviceArray<u8>::output(bytes, {.name = "y"});
    return DeviceArray<u8>(bytes, {.name = "y"});
  }
  [[nodiscard]] nibble_matrix y_of(const DeviceArray<u8>& y) const {
    const auto& s = p_.shape;
    return {sizeof(nibble_matrix), s.y_f32 ? NIBBLE_F32 : s.dtype, s.m, s.n, s.n + s.y_stride, y.data()};
  }

  // The call without x and products.
  [[nodiscard]] nibble_matmul call() const {
    const auto& s = p_.shape;
    nibble_matmul call{};
    call.struct_bytes = sizeof call;
    call.compute_dtype = s.x_f32 ? s.dtype : NIBBLE_F32;
    call.accumulate = s.accumulate;
    call.weights_are_ready = s.overlap;
    call.min_library_m = s.by_library ? 1 : NIBBLE_NO_LIBRARY;
    call.max_panel_bytes = s.panel_bytes;
    return call;
  }

  // m * n values. Between the rows of y, and in rows that the product does not write, nothing may be written.
  [[nodiscard]] std::vector<float> values_in(const DeviceArray<u8>& y_array) const {
    const auto& s = p_.shape;
    const std::size_t stride = s.n + s.y_stride;
    const std::vector<u8> bytes = y_array.to_host();
    const std::vector<float> all = values_of(bytes, s.y_f32, s.dtype);
    const std::vector<float> before =
        s.accumulate ? p_.y : values_of(std::vector<u8>(bytes.size(), 0xff), s.y_f32, s.dtype);
    std::vector<float> result;
    for (std::size_t at_m = 0; at_m < s.m; ++at_m) {
      const bool is_written = p_.writes(at_m);
      for (std::size_t i = 0; i < stride; ++i) {
        const float value = all[at_m * stride + i], old = before[at_m * stride + i];
        if (i < s.n && is_written)
          result.push_back(value);
        else
          EXPECT_EQ(std::memcmp(&value, &old, sizeof value), 0) << "written: row " << at_m << ", " << i;
        if (i < s.n && !is_written) result.push_back(0);
      }
    }
    return result;
  }

 protected:
  explicit MatmulRun(const Problem& p)
      : p_(p),
        x_(DeviceArray<u8>::input(bytes_of(p.x, p.shape.x_f32, p.shape.dtype), {.name = "x"})),
        bias_(DeviceArray<u8>::input(bytes_of(p.bias, false, p.shape.dtype), {.name = "bias"})) {}

  // Of the weight.
  template <class T> DeviceArray<T> array(const std::vector<T>& host, const char* name, std::size_t offset = 0) const {
    const ArrayInfo info{.offset_bytes = offset, .name = name};
    return p_.shape.overlap ? DeviceArray<T>::constant(host, info) : DeviceArray<T>::input(host, info);
  }

  const Problem& p_;

 private:
  DeviceArray<u8> x_, bias_;
};

}  // namespace nibble::kernels::test
