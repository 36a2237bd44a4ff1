// A product with an int8 weight for tests: random problems, what they should give, and the arrays that a call takes.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "nibble/kernels.hpp"
#include "tests/kernels/matmul/matmul_support.hpp"
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
struct Int8Problem : MatmulValues {
  Int8Shape shape;
  std::vector<i8> codes;
  std::vector<float> absmax;

  Int8Problem(const Int8Shape& s, u32 seed) : shape(s), codes(s.n * s.k), absmax(s.n) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (i8& code : codes) code = static_cast<i8>(random() % 256);
    for (float& value : absmax) value = 0.05f * std::fabs(normal(random));
    fill(s, random, normal);
  }

  [[nodiscard]] static bool writes(std::size_t /*at_m*/) { return true; }
  [[nodiscard]] static bool writes_all() { return true; }
};

// docs/int8-matmul.md has the proof.
inline Expected expected_at(const Int8Problem& p, std::size_t at_m, std::size_t at_n) {
  const Int8Shape& s = p.shape;
  const ExactSum sum(p, at_m, at_n, [&](std::size_t at_k) {
    const float code = p.codes[at_n * s.k + at_k];
    if (s.by_library) return double{rounded_to(s.dtype, (code * p.absmax[at_n]) * (1.0f / 127))};
    return double{code} * (double{p.absmax[at_n]} / 127);
  });
#if defined(NIBBLE_ON_GPU)
  constexpr double u = 0x1p-23;  // tensor cores cut sums off
#else
  constexpr double u = 0x1p-24;
#endif
  const double roundings = static_cast<double>(s.k) + 3;
  const double error = roundings * u / (1 - roundings * u) * sum.magnitude;
  const double half_ulp = s.y_f32 ? 0 : s.dtype == NIBBLE_BF16 ? 0x1p-8 : 0x1p-11;  // at most, of y
  return {sum.value, error + half_ulp * (std::fabs(sum.value) + error) + (s.dtype == NIBBLE_F16 ? 0x1p-25 : 0)};
}

// The arrays of a problem on the device, and the product.
class Int8Run : public MatmulRun<Int8Problem> {
 public:
  explicit Int8Run(const Int8Problem& p)
      : MatmulRun(p), codes_(array(p.codes, "codes", p.shape.codes_offset)), absmax_(array(p.absmax, "absmax")) {}
  explicit Int8Run(Int8Problem&&) = delete;  // a run reads its problem

  [[nodiscard]] nibble_int8 weight() const {
    return {sizeof(nibble_int8), p_.shape.n, p_.shape.k, codes_.data(), absmax_.data()};
  }

  // What body(matmul, product) returns for the arguments of a call that writes to `y_array`.
  template <class Body> auto with_call(const DeviceArray<u8>& y_array, Body&& body) const {
    const nibble_int8 w = weight();
    const nibble_matrix x_matrix = x(), y_matrix = y_of(y_array);
    const nibble_int8_product product{sizeof(nibble_int8_product), &w, bias(), &y_matrix};
    nibble_matmul matmul = call();
    matmul.x = &x_matrix;
    return body(matmul, product);
  }

  // m * n values.
  [[nodiscard]] std::vector<float> product(u32* counters = nullptr) const {
    const DeviceArray<u8> y_array = y();
    with_call(y_array, [&](nibble_matmul& matmul, const nibble_int8_product& product) {
      matmul.counters = counters;
      const DeviceArray<u8> workspace(cuda::workspace_bytes(matmul, product), {.name = "workspace"});
      cuda::run(matmul, product, workspace.data(), workspace.size(), nullptr);
    });
    return values_in(y_array);
  }

 private:
  DeviceArray<i8> codes_;
  DeviceArray<float> absmax_;
};

inline void expect_int8_product(const Int8Shape& shape, u32 seed) {
  SCOPED_TRACE(testing::PrintToString(shape));
  const Int8Problem problem(shape, seed);
  expect_product_in_schedules(problem, Int8Run(problem));
}

}  // namespace nibble::kernels::test
