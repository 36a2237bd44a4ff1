// A product with a 4-bit weight for tests: random problems, what they should give, and the arrays that a call takes.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/device/device.hpp"
#include "nibble/fp4.hpp"
#include "nibble/kernels.hpp"
#include "nibble/nested.hpp"
#include "nibble/nf4.hpp"
#include "tests/kernels/schedules.hpp"
#include "tests/simulator/array.hpp"

namespace nibble::kernels::test {

using namespace device;

struct Shape {
  std::size_t m, n, k;
  std::uint32_t blocksize = 64;
  bool nested = true, bias = false;
  nibble_dtype dtype = NIBBLE_BF16;  // of the products
  nibble_codebook codebook = NIBBLE_NF4;
  std::size_t x_stride = 0, y_stride = 0;  // beyond k and n
  std::size_t packed_offset = 0;           // bytes after an aligned address
  std::size_t first = 0, gap = 0;          // of a slice: its first element, and its stride beyond k
  bool x_f32 = false, y_f32 = false, accumulate = false, overlap = false;
  std::vector<u32> ends{};  // of experts, each with n rows of the weight
  bool by_library = false;  // for any m
  u64 panel_bytes = 0;
};

inline void PrintTo(const Shape& s, std::ostream* out) {
  *out << s.m << " x " << s.n << " x " << s.k << ", blocksize " << s.blocksize << (s.nested ? ", nested" : "")
       << (s.bias ? ", bias" : "") << (s.dtype == NIBBLE_BF16 ? ", bf16" : ", fp16")
       << (s.codebook == NIBBLE_NF4 ? ", nf4" : ", fp4") << ", strides + " << s.x_stride << ", " << s.y_stride
       << ", packed + " << s.packed_offset << ", slice from " << s.first << ", stride + " << s.gap
       << (s.x_f32 ? ", fp32 x" : "") << (s.y_f32 ? ", fp32 y" : "") << (s.accumulate ? ", accumulate" : "")
       << (s.overlap ? ", overlap" : "") << ", experts " << s.ends.size()
       << (s.by_library ? ", by a library in panels of " + std::to_string(s.panel_bytes) : "");
}

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

// A weight of normal values as the codecs of the processor encode it, and what it is multiplied with.
struct Problem {
  Shape shape;
  std::size_t experts;  // at least 1
  std::vector<u8> packed, absmax_codes;
  std::vector<float> absmax, nested_absmax, offset;
  std::vector<float> weight;      // decoded, fp32: all elements, of which the problem may have a slice
  std::vector<float> x, bias, y;  // what y has before

  Problem(const Shape& s, u32 seed) : shape(s), experts(std::max<std::size_t>(s.ends.size(), 1)) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> original(s.first + experts * s.n * (s.k + s.gap));
    for (float& value : original) value = 0.02f * normal(random);
    const std::size_t blocks = ceil_div<std::size_t>(original.size(), s.blocksize);
    packed.resize((original.size() + 1) / 2);
    absmax.resize(blocks);
    (s.codebook == NIBBLE_NF4 ? nf4::encode : fp4::encode)(original, s.blocksize, packed, absmax);
    if (s.nested) {
      offset = {nested::offset(absmax)};
      absmax_codes.resize(blocks);
      nested_absmax.resize(ceil_div<std::size_t>(blocks, 256));
      nested::encode(absmax, offset[0], absmax_codes, nested_absmax);
      nested::decode(absmax_codes, nested_absmax, nested::codebook, offset[0], absmax);
    }
    weight.resize(original.size());
    (s.codebook == NIBBLE_NF4 ? nf4::decode : fp4::decode)(packed, absmax, s.blocksize, weight);
    x.resize(s.m * (s.k + s.x_stride));
    for (float& value : x) value = s.x_f32 ? normal(random) : rounded_to(s.dtype, normal(random));
    if (s.bias) bias.resize(s.n);
    for (float& value : bias) value = rounded_to(s.dtype, normal(random));
    if (s.accumulate) y.resize(s.m * (s.n + s.y_stride));
    for (float& value : y) value = s.y_f32 ? normal(random) : rounded_to(s.dtype, normal(random));
  }

  [[nodiscard]] float x_at(std::size_t at_m, std::size_t at_k) const {
    return rounded_to(shape.dtype, x[at_m * (shape.k + shape.x_stride) + at_k]);
  }
  // The expert that row at_m of x belongs to; the number of experts if none.
  [[nodiscard]] std::size_t expert_of(std::size_t at_m) const {
    if (shape.ends.empty()) return 0;
    return static_cast<std::size_t>(std::upper_bound(shape.ends.begin(), shape.ends.end(), at_m) - shape.ends.begin());
  }
  [[nodiscard]] std::size_t element_at(std::size_t at_m, std::size_t at_n, std::size_t at_k) const {
    return shape.first + (expert_of(at_m) * shape.n + at_n) * (shape.k + shape.gap) + at_k;
  }
};

// What a product should be, and how far it may be from that.
struct Expected {
  double value, tolerance;
};

inline Expected expected_at(const Problem& p, std::size_t at_m, std::size_t at_n) {
  const Shape& s = p.shape;
  const float* codebook = s.codebook == NIBBLE_NF4 ? nf4::codebook.value : fp4::codebook.value;
  double sum = 0, magnitude = 0;
  for (std::size_t at_k = 0; at_k < s.k; ++at_k) {
    const std::size_t element = p.element_at(at_m, at_n, at_k);
    const u32 byte = p.packed[element / 2], code = element % 2 == 0 ? byte >> 4 : byte & 15;
    const double weight = s.by_library
                              ? double{rounded_to(s.dtype, p.weight[element])}
                              : double{rounded_to(s.dtype, codebook[code])} * double{p.absmax[element / s.blocksize]};
    const double product = weight * double{p.x_at(at_m, at_k)};
    sum += product;
    magnitude += std::fabs(product);
  }
  const auto add = [&](float value) {
    sum += double{value};
    magnitude += std::fabs(double{value});
  };
  if (s.bias) add(p.bias[at_n]);
  if (s.accumulate) add(p.y[at_m * (s.n + s.y_stride) + at_n]);
  // Each of the sums in fp32 is at most of k + 3 terms; the result is rounded once (fp16 may be subnormal).
  const double epsilon = 0x1p-24, half_ulp = s.y_f32 ? 0 : s.dtype == NIBBLE_BF16 ? 0x1p-8 : 0x1p-11;
  const double error = (static_cast<double>(s.k) + 3) * epsilon * magnitude;
  return {sum, error + half_ulp * (std::fabs(sum) + error) + 0x1p-25};
}

// The arrays of a problem on the device, and the product.
class Product {
 public:
  explicit Product(const Problem& p)
      : p_(p),
        packed_(array(p.packed, "packed", p.shape.packed_offset)),
        absmax_codes_(array(p.absmax_codes, "absmax_codes")),
        absmax_(array(p.absmax, "absmax")),
        nested_absmax_(array(p.nested_absmax, "nested_absmax")),
        nested_codebook_(
            array(std::vector<float>(nested::codebook.begin(), nested::codebook.end()), "nested_codebook")),
        offset_(array(p.offset, "offset")),
        x_(DeviceArray<u8>::input(bytes_of(p.x, p.shape.x_f32, p.shape.dtype), {.name = "x"})),
        bias_(DeviceArray<u8>::input(bytes_of(p.bias, false, p.shape.dtype), {.name = "bias"})),
        ends_(DeviceArray<u32>::workspace(p.shape.ends, {.name = "ends"})) {}

  [[nodiscard]] nibble_four_bit weight() const {
    const Shape& s = p_.shape;
    nibble_four_bit weight{};
    weight.struct_bytes = sizeof weight;
    weight.codebook = s.codebook;
    weight.blocksize = s.blocksize;
    weight.rows = p_.experts * s.n;
    weight.columns = s.k;
    weight.packed = packed_.data();
    weight.first = s.first;
    weight.stride = s.gap == 0 ? 0 : s.k + s.gap;
    if (!s.nested) {
      weight.absmax = absmax_.data();
      return weight;
    }
    weight.absmax_codes = absmax_codes_.data();
    weight.nested_absmax = nested_absmax_.data();
    weight.nested_codebook = nested_codebook_.data();
    weight.nested_offset = offset_.data();
    return weight;
  }
  [[nodiscard]] nibble_matrix x() const {
    const Shape& s = p_.shape;
    return {s.x_f32 ? NIBBLE_F32 : s.dtype, s.m, s.k, s.k + s.x_stride, x_.data()};
  }
  [[nodiscard]] const void* bias() const { return p_.shape.bias ? bias_.data() : nullptr; }

  // A y for this product, as it is before: written once unless there is more to it.
  [[nodiscard]] DeviceArray<u8> y() const {
    const Shape& s = p_.shape;
    if (s.accumulate) return DeviceArray<u8>::workspace(bytes_of(p_.y, s.y_f32, s.dtype), {.name = "y"});
    const std::size_t bytes = s.m * (s.n + s.y_stride) * (s.y_f32 ? 4 : 2);
    if (s.y_stride == 0 && s.ends.empty()) return DeviceArray<u8>::output(bytes, {.name = "y"});
    return DeviceArray<u8>(bytes, {.name = "y"});
  }
  [[nodiscard]] nibble_matrix y_of(const DeviceArray<u8>& y) const {
    const Shape& s = p_.shape;
    return {s.y_f32 ? NIBBLE_F32 : s.dtype, s.m, s.n, s.n + s.y_stride, y.data()};
  }
  [[nodiscard]] nibble_matmul call() const {
    const Shape& s = p_.shape;
    nibble_matmul call{};
    call.struct_bytes = sizeof call;
    call.product_count = 1;
    call.experts = static_cast<u32>(s.ends.size());
    call.ends = s.ends.empty() ? nullptr : ends_.data();
    call.compute_dtype = s.x_f32 ? s.dtype : NIBBLE_F32;
    call.accumulate = s.accumulate;
    call.weights_are_ready = s.overlap;
    call.min_library_m = s.by_library ? 1 : NIBBLE_NO_LIBRARY;
    call.max_panel_bytes = s.panel_bytes;
    return call;
  }

  // m * n values. Between the rows of y, and for rows that no expert has, nothing may be written.
  [[nodiscard]] std::vector<float> product(u32* counters = nullptr) const {
    const nibble_four_bit w = weight();
    const nibble_matrix x_matrix = x();
    const DeviceArray<u8> y_array = y();
    const nibble_matrix y_matrix = y_of(y_array);
    const nibble_four_bit_product product{&w, bias(), &y_matrix};
    nibble_matmul matmul = call();
    matmul.x = &x_matrix;
    matmul.products = &product;
    matmul.counters = counters;
    const DeviceArray<u8> workspace(cuda::workspace_bytes(matmul), {.name = "workspace"});
    cuda::run(matmul, workspace.data(), workspace.size(), nullptr);
    return values_in(y_array);
  }

  [[nodiscard]] std::vector<float> values_in(const DeviceArray<u8>& y_array) const {
    const Shape& s = p_.shape;
    const std::size_t stride = s.n + s.y_stride;
    const std::vector<u8> bytes = y_array.to_host();
    const std::vector<float> all = values_of(bytes, s.y_f32, s.dtype);
    const std::vector<float> before =
        s.accumulate ? p_.y : values_of(std::vector<u8>(bytes.size(), 0xff), s.y_f32, s.dtype);
    std::vector<float> result;
    for (std::size_t at_m = 0; at_m < s.m; ++at_m) {
      const bool is_written = p_.expert_of(at_m) < p_.experts;
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

 private:
  template <class T> DeviceArray<T> array(const std::vector<T>& host, const char* name, std::size_t offset = 0) const {
    const ArrayInfo info{.offset_bytes = offset, .name = name};
    return p_.shape.overlap ? DeviceArray<T>::constant(host, info) : DeviceArray<T>::input(host, info);
  }

  const Problem& p_;
  DeviceArray<u8> packed_, absmax_codes_;
  DeviceArray<float> absmax_, nested_absmax_, nested_codebook_, offset_;
  DeviceArray<u8> x_, bias_;
  DeviceArray<u32> ends_;
};

inline void expect_values(const Problem& problem, const std::vector<float>& values) {
  const Shape& shape = problem.shape;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (problem.expert_of(i / shape.n) == problem.experts) continue;
    const Expected expected = expected_at(problem, i / shape.n, i % shape.n);
    ASSERT_NEAR(values[i], expected.value, expected.tolerance) << "m " << i / shape.n << ", n " << i % shape.n;
  }
}

// The weights of all problems with the x of the first, in one call, of which `change` can make another. The workspace
// is no more aligned than it has to be.
template <class Change> void expect_shared_x(const std::vector<const Problem*>& problems, Change&& change) {
  std::vector<Product> runs;
  for (const Problem* problem : problems) runs.emplace_back(*problem);
  std::vector<nibble_four_bit> weights;
  std::vector<DeviceArray<u8>> ys;
  std::vector<nibble_matrix> y_matrices;
  for (const Product& run : runs) {
    weights.push_back(run.weight());
    ys.push_back(run.y());
    y_matrices.push_back(run.y_of(ys.back()));
  }
  std::vector<nibble_four_bit_product> products;
  for (std::size_t i = 0; i < runs.size(); ++i) products.push_back({&weights[i], runs[i].bias(), &y_matrices[i]});
  const nibble_matrix x = runs[0].x();
  nibble_matmul call = runs[0].call();
  call.x = &x;
  call.products = products.data();
  call.product_count = static_cast<std::uint32_t>(products.size());
  change(call);
  const DeviceArray<u8> workspace(cuda::workspace_bytes(call), {.offset_bytes = 16, .name = "workspace"});
  cuda::run(call, workspace.data(), workspace.size(), nullptr);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    Problem own = *problems[i];
    own.x = problems[0]->x;
    expect_values(own, runs[i].values_in(ys[i]));
  }
}
inline void expect_shared_x(const std::vector<const Problem*>& problems) {
  expect_shared_x(problems, [](nibble_matmul&) {});
}

inline void expect_product(const Shape& shape, u32 seed) {
  SCOPED_TRACE(testing::PrintToString(shape));
  const Problem problem(shape, seed);
  const Product run(problem);
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

// Random products. shape_of(i, below) draws the sizes that a test is about, of product i, where below(n) is a number
// less than n. The rest is drawn here.
template <class Draw> void expect_random_products(u32 count, u32 seed, Draw&& shape_of) {
  std::mt19937 random(seed);
  const auto below = [&](u32 n) { return random() % n; };
  for (u32 i = 0; i < count; ++i) {
    Shape shape = shape_of(i, below);
    shape.nested = below(2) == 0;
    shape.bias = below(2) == 0;
    shape.dtype = below(2) == 0 ? NIBBLE_BF16 : NIBBLE_F16;
    shape.codebook = below(3) == 0 ? NIBBLE_FP4 : NIBBLE_NF4;
    shape.y_stride = below(2) == 0 ? below(5) : 0;
    expect_product(shape, 100 * seed + i);
  }
}

}  // namespace nibble::kernels::test
