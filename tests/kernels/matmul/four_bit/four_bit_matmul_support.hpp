// A product with a 4-bit weight for tests: random problems, what they should give, and the arrays that a call takes.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "nibble/fp4.hpp"
#include "nibble/kernels.hpp"
#include "nibble/nested.hpp"
#include "nibble/nf4.hpp"
#include "tests/kernels/matmul/matmul_support.hpp"
#include "tests/simulator/array.hpp"

namespace nibble::kernels::test {

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

// A weight of normal values as the codecs of the processor encode it, and what it is multiplied with. The absmax of
// every third block is negative, as a search makes them.
struct Problem : MatmulValues {
  Shape shape;
  std::size_t experts;  // at least 1
  std::vector<u8> packed, absmax_codes;
  std::vector<float> absmax, nested_absmax, offset;
  std::vector<float> weight;  // decoded, fp32: all elements, of which the problem may have a slice

  Problem(const Shape& s, u32 seed) : shape(s), experts(std::max<std::size_t>(s.ends.size(), 1)) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> original(s.first + experts * s.n * (s.k + s.gap));
    for (float& value : original) value = 0.02f * normal(random);
    const std::size_t blocks = ceil_div<std::size_t>(original.size(), s.blocksize);
    packed.resize((original.size() + 1) / 2);
    absmax.resize(blocks);
    (s.codebook == NIBBLE_NF4 ? nf4::encode : fp4::encode)(original, s.blocksize, packed, absmax);
    for (std::size_t block = 0; block < blocks; block += 3) absmax[block] = -absmax[block];
    if (s.nested) {
      offset = {nested::offset(absmax)};
      absmax_codes.resize(blocks);
      nested_absmax.resize(ceil_div<std::size_t>(blocks, 256));
      nested::encode(absmax, offset[0], absmax_codes, nested_absmax);
      nested::decode(absmax_codes, nested_absmax, nested::codebook, offset[0], absmax);
    }
    weight.resize(original.size());
    (s.codebook == NIBBLE_NF4 ? nf4::decode : fp4::decode)(packed, absmax, s.blocksize, weight);
    fill(s, random, normal);
  }

  // The expert that row at_m of x belongs to; the number of experts if none.
  [[nodiscard]] std::size_t expert_of(std::size_t at_m) const {
    if (shape.ends.empty()) return 0;
    return static_cast<std::size_t>(std::upper_bound(shape.ends.begin(), shape.ends.end(), at_m) - shape.ends.begin());
  }
  [[nodiscard]] bool writes(std::size_t at_m) const { return expert_of(at_m) < experts; }
  [[nodiscard]] bool writes_all() const { return shape.ends.empty(); }
  [[nodiscard]] std::size_t element_at(std::size_t at_m, std::size_t at_n, std::size_t at_k) const {
    return shape.first + (expert_of(at_m) * shape.n + at_n) * (shape.k + shape.gap) + at_k;
  }
};

inline Expected expected_at(const Problem& p, std::size_t at_m, std::size_t at_n) {
  const Shape& s = p.shape;
  const float* codebook = s.codebook == NIBBLE_NF4 ? nf4::codebook.value : fp4::codebook.value;
  const ExactSum sum(p, at_m, at_n, [&](std::size_t at_k) {
    const std::size_t element = p.element_at(at_m, at_n, at_k);
    if (s.by_library) return double{rounded_to(s.dtype, p.weight[element])};
    const u32 byte = p.packed[element / 2], code = element % 2 == 0 ? byte >> 4 : byte & 15;
    return double{rounded_to(s.dtype, codebook[code])} * double{p.absmax[element / s.blocksize]};
  });
  // Each of the sums in fp32 is at most of k + 3 terms; the result is rounded once (fp16 may be subnormal).
  const double epsilon = 0x1p-24, half_ulp = s.y_f32 ? 0 : s.dtype == NIBBLE_BF16 ? 0x1p-8 : 0x1p-11;
  const double error = (static_cast<double>(s.k) + 3) * epsilon * sum.magnitude;
  return {sum.value, error + half_ulp * (std::fabs(sum.value) + error) + 0x1p-25};
}

// The arrays of a problem on the device, and the product.
class Product : public MatmulRun<Problem> {
 public:
  explicit Product(const Problem& p)
      : MatmulRun(p),
        packed_(array(p.packed, "packed", p.shape.packed_offset)),
        absmax_codes_(array(p.absmax_codes, "absmax_codes")),
        absmax_(array(p.absmax, "absmax")),
        nested_absmax_(array(p.nested_absmax, "nested_absmax")),
        nested_codebook_(
            array(std::vector<float>(nested::codebook.begin(), nested::codebook.end()), "nested_codebook")),
        offset_(array(p.offset, "offset")),
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
  [[nodiscard]] nibble_matmul call() const {
    const Shape& s = p_.shape;
    nibble_matmul call = MatmulRun::call();
    call.product_count = 1;
    call.experts = static_cast<u32>(s.ends.size());
    call.ends = s.ends.empty() ? nullptr : ends_.data();
    return call;
  }

  // m * n values, of which rows that no expert has are zeros.
  [[nodiscard]] std::vector<float> product(u32* counters = nullptr) const {
    const nibble_four_bit w = weight();
    const nibble_matrix x_matrix = x();
    const DeviceArray<u8> y_array = y();
    const nibble_matrix y_matrix = y_of(y_array);
    const nibble_four_bit_product product{sizeof(nibble_four_bit_product), &w, bias(), &y_matrix};
    nibble_matmul matmul = call();
    matmul.x = &x_matrix;
    matmul.products = &product;
    matmul.counters = counters;
    const DeviceArray<u8> workspace(cuda::workspace_bytes(matmul), {.name = "workspace"});
    cuda::run(matmul, workspace.data(), workspace.size(), nullptr);
    return values_in(y_array);
  }

 private:
  DeviceArray<u8> packed_, absmax_codes_;
  DeviceArray<float> absmax_, nested_absmax_, nested_codebook_, offset_;
  DeviceArray<u32> ends_;
};

// The weights of all problems with the x of the first, in one call, of which `change` can make another. The workspace
// is no more aligned than it has to be. Returns the values of each product.
template <class Change>
std::vector<std::vector<float>> expect_shared_x(const std::vector<const Problem*>& problems, Change&& change) {
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
  for (std::size_t i = 0; i < runs.size(); ++i)
    products.push_back({sizeof(nibble_four_bit_product), &weights[i], runs[i].bias(), &y_matrices[i]});
  const nibble_matrix x = runs[0].x();
  nibble_matmul call = runs[0].call();
  call.x = &x;
  call.products = products.data();
  call.product_count = static_cast<std::uint32_t>(products.size());
  change(call);
  const DeviceArray<u8> workspace(cuda::workspace_bytes(call), {.offset_bytes = 16, .name = "workspace"});
  cuda::run(call, workspace.data(), workspace.size(), nullptr);
  std::vector<std::vector<float>> values;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    Problem own = *problems[i];
    own.x = problems[0]->x;
    values.push_back(runs[i].values_in(ys[i]));
    expect_values(own, values.back());
  }
  return values;
}
inline std::vector<std::vector<float>> expect_shared_x(const std::vector<const Problem*>& problems) {
  return expect_shared_x(problems, [](nibble_matmul&) {});
}

inline void expect_product(const Shape& shape, u32 seed) {
  SCOPED_TRACE(testing::PrintToString(shape));
  const Problem problem(shape, seed);
  expect_product_in_schedules(problem, Product(problem));
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
