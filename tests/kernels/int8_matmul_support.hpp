// A product with an int8 weight for tests: random problems, what they should give, and the arrays that a call takes.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "nibble/kernels.hpp"
#include "tests/kernels/four_bit_matmul_support.hpp"
#include "tests/kernels/schedules.hpp"
#include "tests/simulator/array.hpp"

namespace nibble::kernels::test {

struct Int8Shape {
  std::size_t m, n, k;
  bool bias = false;
  nibble_dtype dtype = NIBBLE_BF16;        // of the products
  std::size_t x_stride = 0, y_stride = 0;  // beyond k and n
  std::size_t codes_offset = 0;            // bytes after an aligned address
  bool x_f32 = false, y_f32 = false, accumulate = false, overlap = false;
  bool by_library = false;  // for any m
  u64 panel_bytes = 0;
};

inline void PrintTo(const Int8Shape& s, std::ostream* out) {
  *out << s.m << " x " << s.n << " x " << s.k << (s.bias ? ", bias" : "")
       << (s.dtype == NIBBLE_BF16 ? ", bf16" : ", fp16") << ", strides + " << s.x_stride << ", " << s.y_stride
       << ", codes + " << s.codes_offset << (s.x_f32 ? ", fp32 x" : "") << (s.y_f32 ? ", fp32 y" : "")
       << (s.accumulate ? ", accumulate" : "") << (s.overlap ? ", overlap" : "")
       << (s.by_library ? ", by a library in panels of " + std::to_string(s.panel_bytes) : "");
}

// Codes of every value, -128 too, which the codec does not give.
struct Int8Problem {
  Int8Shape shape;
  std::vector<i8> codes;
  std::vector<float> absmax, x, bias, y;  // y: what it has before

  Int8Problem(const Int8Shape& s, u32 seed) : shape(s), codes(s.n * s.k), absmax(s.n) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (i8& code : codes) code = static_cast<i8>(random() % 256);
    for (float& value : absmax) value = 0.05f * std::fabs(normal(random));
    x.resize(s.m * (s.k + s.x_stride));
    for (float& value : x) value = s.x_f32 ? normal(random) : rounded_to(s.dtype, normal(random));
    if (s.bias) bias.resize(s.n);
    for (float& value : bias) value = rounded_to(s.dtype, normal(random));
    if (s.accumulate) y.resize(s.m * (s.n + s.y_stride));
    for (float& value : y) value = s.y_f32 ? normal(random) : rounded_to(s.dtype, normal(random));
  }

  // docs/int8-matmul.md has the proof.
  [[nodiscard]] Expected expected_at(std::size_t at_m, std::size_t at_n) const {
    const Int8Shape& s = shape;
    double sum = 0, magnitude = 0;
    for (std::size_t at_k = 0; at_k < s.k; ++at_k) {
      const double code = codes[at_n * s.k + at_k], scale = double{absmax[at_n]} / 127;
      const auto decoded = (static_cast<float>(codes[at_n * s.k + at_k]) * absmax[at_n]) * (1.0f / 127);
      const double weight = s.by_library ? double{rounded_to(s.dtype, decoded)} : code * scale;
      const double product = double{rounded_to(s.dtype, x[at_m * (s.k + s.x_stride) + at_k])} * weight;
      sum += product;
      magnitude += std::fabs(product);
    }
    const auto add = [&](float value) {
      sum += double{value};
      magnitude += std::fabs(double{value});
    };
    if (s.bias) add(bias[at_n]);
    if (s.accumulate) add(y[at_m * (s.n + s.y_stride) + at_n]);
#if defined(NIBBLE_ON_GPU)
    constexpr double u = 0x1p-23;  // tensor cores cut sums off
#else
    constexpr double u = 0x1p-24;
#endif
    const double roundings = static_cast<double>(s.k) + 3;
    const double error = roundings * u / (1 - roundings * u) * magnitude;
    const double half_ulp = s.y_f32 ? 0 : s.dtype == NIBBLE_BF16 ? 0x1p-8 : 0x1p-11;  // at most, of y
    return {sum, error + half_ulp * (std::fabs(sum) + error) + (s.dtype == NIBBLE_F16 ? 0x1p-25 : 0)};
  }

  void expect_values(const std::vector<float>& values) const {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const Expected expected = expected_at(i / shape.n, i % shape.n);
      ASSERT_NEAR(values[i], expected.value, expected.tolerance) << "m " << i / shape.n << ", n " << i % shape.n;
    }
  }
};

// The arrays of a problem on the device, and the product.
class Int8Run {
 public:
  explicit Int8Run(const Int8Problem& p)
      : p_(p),
        codes_(array(p.codes, "codes", p.shape.codes_offset)),
        absmax_(array(p.absmax, "absmax")),
        x_(DeviceArray<u8>::input(bytes_of(p.x, p.shape.x_f32, p.shape.dtype), {.name = "x"})),
        bias_(DeviceArray<u8>::input(bytes_of(p.bias, false, p.shape.dtype), {.name = "bias"})) {}

  [[nodiscard]] nibble_int8 weight() const { return {p_.shape.n, p_.shape.k, codes_.data(), absmax_.data()}; }
  [[nodiscard]] nibble_matrix x() const {
    const Int8Shape& s = p_.shape;
    return {s.x_f32 ? NIBBLE_F32 : s.dtype, s.m, s.k, s.k + s.x_stride, x_.data()};
  }
  [[nodiscard]] const void* bias() const { return p_.shape.bias ? bias_.data() : nullptr; }
  // A y for this product, as it is before: written once unless there is more to it.
  [[nodiscard]] DeviceArray<u8> y() const {
    const Int8Shape& s = p_.shape;
    if (s.accumulate) return DeviceArray<u8>::workspace(bytes_of(p_.y, s.y_f32, s.dtype), {.name = "y"});
    const std::size_t bytes = s.m * (s.n + s.y_stride) * (s.y_f32 ? 4 : 2);
    if (s.y_stride == 0) return DeviceArray<u8>::output(bytes, {.name = "y"});
    return DeviceArray<u8>(bytes, {.name = "y"});
  }
  [[nodiscard]] nibble_matrix y_of(const DeviceArray<u8>& y) const {
    const Int8Shape& s = p_.shape;
    return {s.y_f32 ? NIBBLE_F32 : s.dtype, s.m, s.n, s.n + s.y_stride, y.data()};
  }
  [[nodiscard]] nibble_matmul call() const {
    nibble_matmul call{};
    call.struct_bytes = sizeof call;
    call.compute_dtype = p_.shape.x_f32 ? p_.shape.dtype : NIBBLE_F32;
    call.accumulate = p_.shape.accumulate;
    call.weights_are_ready = p_.shape.overlap;
    call.min_library_m = p_.shape.by_library ? 1 : NIBBLE_NO_LIBRARY;
    call.max_panel_bytes = p_.shape.panel_bytes;
    return call;
  }

  // m * n values. Between the rows of y nothing may be written.
  [[nodiscard]] std::vector<float> product(u32* counters = nullptr) const {
    const nibble_int8 w = weight();
    const nibble_matrix x_matrix = x();
    const DeviceArray<u8> y_array = y();
    const nibble_matrix y_matrix = y_of(y_array);
    const nibble_int8_product product{&w, bias(), &y_matrix};
    nibble_matmul matmul = call();
    matmul.x = &x_matrix;
    matmul.counters = counters;
    const DeviceArray<u8> workspace(cuda::workspace_bytes(matmul, product), {.name = "workspace"});
    cuda::run(matmul, product, workspace.data(), workspace.size(), nullptr);
    return values_in(y_array);
  }

  [[nodiscard]] std::vector<float> values_in(const DeviceArray<u8>& y_array) const {
    const Int8Shape& s = p_.shape;
    const std::size_t stride = s.n + s.y_stride;
    const std::vector<u8> bytes = y_array.to_host();
    const std::vector<float> all = values_of(bytes, s.y_f32, s.dtype);
    const std::vector<float> before =
        s.accumulate ? p_.y : values_of(std::vector<u8>(bytes.size(), 0xff), s.y_f32, s.dtype);
    std::vector<float> result;
    for (std::size_t i = 0; i < all.size(); ++i)
      if (i % stride < s.n)
        result.push_back(all[i]);
      else
        EXPECT_EQ(std::memcmp(&all[i], &before[i], sizeof(float)), 0)
            << "written: " << i / stride << ", " << i % stride;
    return result;
  }

 private:
  template <class T> DeviceArray<T> array(const std::vector<T>& host, const char* name, std::size_t offset = 0) const {
    const ArrayInfo info{.offset_bytes = offset, .name = name};
    return p_.shape.overlap ? DeviceArray<T>::constant(host, info) : DeviceArray<T>::input(host, info);
  }

  const Int8Problem& p_;
  DeviceArray<i8> codes_;
  DeviceArray<float> absmax_;
  DeviceArray<u8> x_, bias_;
};

inline void expect_int8_product(const Int8Shape& shape, u32 seed) {
  SCOPED_TRACE(testing::PrintToString(shape));
  const Int8Problem problem(shape, seed);
  const Int8Run run(problem);
  std::vector<float> first;
  nibble::test::in_schedules([&] {
    const std::vector<float> product = run.product();
    if (!first.empty()) {
      ASSERT_EQ(product, first) << "the schedule decides";
      return;
    }
    first = product;
    problem.expect_values(product);
  });
}

}  // namespace nibble::kernels::test
