// The product with a 4-bit weight: against fp64 over random shapes, and each synchronization turned off in turn. One
// file, because each test is a run of the same Product with other shapes or arguments.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "kernels/device/device.hpp"
#include "kernels/four_bit_matmul.hpp"
#include "kernels/host/four_bit_weight.hpp"
#include "nibble/fp4.hpp"
#include "nibble/kernels.hpp"
#include "nibble/nested.hpp"
#include "nibble/nf4.hpp"
#include "tests/kernels/schedules.hpp"
#include "tests/simulator/array.hpp"

namespace nibble::kernels {
namespace {

using namespace device;

struct Shape {
  std::size_t m, n, k;
  std::uint32_t blocksize = 64;
  bool nested = true, bias = false;
  nibble_dtype dtype = NIBBLE_BF16;
  nibble_codebook codebook = NIBBLE_NF4;
  std::size_t x_stride = 0, y_stride = 0;  // beyond k and n
  std::size_t packed_offset = 0;           // bytes after an aligned address
};

void PrintTo(const Shape& s, std::ostream* out) {
  *out << s.m << " x " << s.n << " x " << s.k << ", blocksize " << s.blocksize << (s.nested ? ", nested" : "")
       << (s.bias ? ", bias" : "") << (s.dtype == NIBBLE_BF16 ? ", bf16" : ", fp16")
       << (s.codebook == NIBBLE_NF4 ? ", nf4" : ", fp4") << ", strides + " << s.x_stride << ", " << s.y_stride
       << ", packed + " << s.packed_offset;
}

float value_of(nibble_dtype dtype, u16 bits) {
  return dtype == NIBBLE_BF16 ? to_float(bf16{bits}) : to_float(f16{bits});
}
u16 bits_in(nibble_dtype dtype, float value) { return dtype == NIBBLE_BF16 ? to_bf16(value).bits : to_f16(value).bits; }
float rounded(nibble_dtype dtype, float value) { return value_of(dtype, bits_in(dtype, value)); }

// A weight of normal values as the codecs of the processor encode it, and what it is multiplied with.
struct Problem {
  Shape shape;
  std::vector<u8> packed, absmax_codes;
  std::vector<float> absmax, nested_absmax, offset;
  std::vector<float> weight;  // decoded, fp32
  std::vector<u16> x, bias;

  Problem(const Shape& s, u32 seed) : shape(s) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> original(s.n * s.k);
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
    for (u16& value : x) value = bits_in(s.dtype, normal(random));
    if (s.bias) bias.resize(s.n);
    for (u16& value : bias) value = bits_in(s.dtype, normal(random));
  }

  float x_at(std::size_t at_m, std::size_t at_k) const {
    return value_of(shape.dtype, x[at_m * (shape.k + shape.x_stride) + at_k]);
  }
};

// What a product should be, and how far it may be from that.
struct Expected {
  double value, tolerance;
};

Expected expected_at(const Problem& p, std::size_t at_m, std::size_t at_n) {
  const bool is_bf16 = p.shape.dtype == NIBBLE_BF16;
  const float* codebook = p.shape.codebook == NIBBLE_NF4 ? nf4::codebook.value : fp4::codebook.value;
  double sum = 0, magnitude = 0;
  for (std::size_t at_k = 0; at_k < p.shape.k; ++at_k) {
    const std::size_t element = at_n * p.shape.k + at_k;
    const u32 byte = p.packed[element / 2], code = element % 2 == 0 ? byte >> 4 : byte & 15;
    const double product = double{rounded(p.shape.dtype, codebook[code])} *
                           double{p.absmax[element / p.shape.blocksize]} * double{p.x_at(at_m, at_k)};
    sum += product;
    magnitude += std::fabs(product);
  }
  if (!p.bias.empty()) {
    sum += double{value_of(p.shape.dtype, p.bias[at_n])};
    magnitude += std::fabs(double{value_of(p.shape.dtype, p.bias[at_n])});
  }
  // Each of the sums in fp32 is at most of k + 2 terms; the result is rounded once (fp16 may be subnormal).
  const double epsilon = 0x1p-24, half_ulp = is_bf16 ? 0x1p-8 : 0x1p-11;
  const double error = (static_cast<double>(p.shape.k) + 2) * epsilon * magnitude;
  return {sum, error + half_ulp * (std::fabs(sum) + error) + 0x1p-25};
}

// The arrays of a problem on the device, and the product.
class Product {
 public:
  explicit Product(const Problem& p)
      : p_(p),
        packed_(DeviceArray<u8>::input(p.packed, {.offset_bytes = p.shape.packed_offset, .name = "packed"})),
        absmax_(DeviceArray<float>::input(p.absmax, {.name = "absmax"})),
        absmax_codes_(DeviceArray<u8>::input(p.absmax_codes, {.name = "absmax_codes"})),
        nested_absmax_(DeviceArray<float>::input(p.nested_absmax, {.name = "nested_absmax"})),
        nested_codebook_(DeviceArray<float>::input({nested::codebook.begin(), nested::codebook.end()})),
        offset_(DeviceArray<float>::input(p.offset)),
        x_(DeviceArray<u16>::input(p.x, {.name = "x"})),
        bias_(DeviceArray<u16>::input(p.bias, {.name = "bias"})) {}

  nibble_four_bit weight() const {
    const Shape& s = p_.shape;
    nibble_four_bit weight{};
    weight.codebook = s.codebook;
    weight.blocksize = s.blocksize;
    weight.rows = s.n;
    weight.columns = s.k;
    weight.packed = packed_.data();
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

  // m * n values. Between the rows of y nothing may be written.
  std::vector<u16> product() const {
    const Shape& s = p_.shape;
    const std::size_t stride = s.n + s.y_stride;
    const nibble_four_bit w = weight();
    const DeviceArray<u16> y(s.m * stride, {.name = "y"});
    const nibble_matrix x{s.dtype, s.m, s.k, s.k + s.x_stride, x_.data()};
    const nibble_matrix out{s.dtype, s.m, s.n, stride, y.data()};
    const DeviceArray<u8> workspace(cuda::matmul_workspace_bytes(s.m, w), {.name = "workspace"});
    cuda::matmul(w, x, s.bias ? bias_.data() : nullptr, out, workspace.data(), workspace.size(), nullptr);
    const std::vector<u16> all = y.to_host();
    std::vector<u16> result;
    for (std::size_t at_m = 0; at_m < s.m; ++at_m) {
      result.insert(result.end(), all.begin() + static_cast<std::ptrdiff_t>(at_m * stride),
                    all.begin() + static_cast<std::ptrdiff_t>(at_m * stride + s.n));
      for (std::size_t i = s.n; i < stride; ++i) EXPECT_EQ(all[at_m * stride + i], 0xffff) << "between rows";
    }
    return result;
  }

  // The same by a kernel of one's choice, whose blocks go through all of k.
  template <class Kernel> std::vector<u16> product_by() const {
    const Shape& s = p_.shape;
    const auto y = DeviceArray<u16>::output(s.m * s.n, {.name = "y"});
    const u32 m = static_cast<u32>(s.m);
    const Grid grid{static_cast<u32>(ceil_div<std::size_t>(s.n, Kernel::block_n))};
    launch(grid, Kernel::shared_bytes(m), nullptr,
           Kernel{operand_of(weight()), reinterpret_cast<const bf16*>(x_.data()), static_cast<i64>(s.k), m,
                  MatmulOutput<bf16>{nullptr, reinterpret_cast<bf16*>(y.data()), static_cast<i64>(s.n)}, nullptr});
    return y.to_host();
  }

  // The same into an output that is written once, with no bytes left out.
  std::vector<u16> product_written_once() const {
    const Shape& s = p_.shape;
    const nibble_four_bit w = weight();
    const auto y = DeviceArray<u16>::output(s.m * s.n, {.name = "y"});
    const nibble_matrix x{s.dtype, s.m, s.k, s.k + s.x_stride, x_.data()};
    const nibble_matrix out{s.dtype, s.m, s.n, s.n, y.data()};
    const DeviceArray<u8> workspace(cuda::matmul_workspace_bytes(s.m, w), {.name = "workspace"});
    cuda::matmul(w, x, s.bias ? bias_.data() : nullptr, out, workspace.data(), workspace.size(), nullptr);
    return y.to_host();
  }

 private:
  const Problem& p_;
  DeviceArray<u8> packed_;
  DeviceArray<float> absmax_;
  DeviceArray<u8> absmax_codes_;
  DeviceArray<float> nested_absmax_, nested_codebook_, offset_;
  DeviceArray<u16> x_, bias_;
};

void expect_product(const Shape& shape, u32 seed) {
  SCOPED_TRACE(testing::PrintToString(shape));
  const Problem problem(shape, seed);
  const Product run(problem);
  std::vector<u16> first;
  test::in_schedules([&] {
    const std::vector<u16> product = shape.y_stride == 0 ? run.product_written_once() : run.product();
    if (!first.empty()) {
      ASSERT_EQ(product, first) << "the schedule decides";
      return;
    }
    first = product;
    for (std::size_t j = 0; j < product.size(); ++j) {
      const Expected expected = expected_at(problem, j / shape.n, j % shape.n);
      ASSERT_NEAR(value_of(shape.dtype, product[j]), expected.value, expected.tolerance)
          << "m " << j / shape.n << ", n " << j % shape.n;
    }
  });
}

// Every kernel at the borders of its range of m, with one tile and with several.
TEST(FourBitMatmul, MFromOneTo64) {
  u32 seed = 1;
  for (const std::size_t m : {1, 3, 4, 5, 8, 9, 16, 17, 31, 32, 33, 63, 64}) {
    expect_product({.m = m, .n = 1 + 37 * (seed % 4), .k = 64 * (1 + seed % 5), .bias = seed % 2 == 0}, seed + 1);
    ++seed;
  }
}

TEST(FourBitMatmul, RandomShapesThatFitTiles) {
  std::mt19937 random(7);
  const auto below = [&](u32 n) { return random() % n; };
  for (u32 i = 0; i < 40; ++i) {
    const bool large = i % 8 == 0;
    expect_product({.m = 1 + below(large ? 64 : 20),
                    .n = 1 + below(large ? 140 : 80),
                    .k = 64 * (1 + below(large ? 18 : 9)),
                    .blocksize = 64u << below(7),
                    .nested = below(2) == 0,
                    .bias = below(2) == 0,
                    .dtype = below(2) == 0 ? NIBBLE_BF16 : NIBBLE_F16,
                    .codebook = below(3) == 0 ? NIBBLE_FP4 : NIBBLE_NF4,
                    .x_stride = below(2) == 0 ? 8 * below(4) : 0,
                    .y_stride = below(2) == 0 ? below(5) : 0,
                    .packed_offset = 8 * below(3)},
                   100 + i);
  }
}

// Blocks that straddle rows, rows that begin within a byte, nothing aligned.
TEST(FourBitMatmul, RandomShapesThatDoNot) {
  std::mt19937 random(8);
  const auto below = [&](u32 n) { return random() % n; };
  for (u32 i = 0; i < 40; ++i)
    expect_product({.m = 1 + below(i % 8 == 0 ? 64 : 12),
                    .n = 1 + below(40),
                    .k = 1 + below(400),
                    .blocksize = 32u << below(8),
                    .nested = below(2) == 0,
                    .bias = below(2) == 0,
                    .dtype = below(2) == 0 ? NIBBLE_BF16 : NIBBLE_F16,
                    .codebook = below(3) == 0 ? NIBBLE_FP4 : NIBBLE_NF4,
                    .x_stride = below(6),
                    .y_stride = below(5),
                    .packed_offset = below(4)},
                   200 + i);
}

// Rows of x that do not begin at 16 bytes, with everything else as the tiles need it.
TEST(FourBitMatmul, XOfAnyStride) {
  for (const std::size_t beyond : {1U, 4U, 7U, 8U})
    expect_product({.m = 3, .n = 20, .k = 128, .x_stride = beyond}, static_cast<u32>(beyond));
}

// The absmax that double quantization gives is a product and a sum, each rounded, as in the codecs: where the sum is 0,
// so is every weight. A fused multiply-add would leave what the product was rounded by.
TEST(FourBitMatmul, NestedAbsmaxIsRoundedTwice) {
  for (const std::size_t k : {64U, 65U})  // tiles, and what has none
    for (const std::size_t m : {1U, 20U})
      for (const u8 code : {u8{3}, u8{90}, u8{200}, u8{251}}) {
        Problem problem({.m = m, .n = 8, .k = k}, code);
        const float product = nested::codebook[code] * 0.0123f;
        ASSERT_NE(std::fma(nested::codebook[code], 0.0123f, -product), 0);
        std::fill(problem.absmax_codes.begin(), problem.absmax_codes.end(), code);
        std::fill(problem.nested_absmax.begin(), problem.nested_absmax.end(), 0.0123f);
        problem.offset = {-product};
        for (const u16 bits : Product(problem).product_written_once())
          ASSERT_EQ(bits & 0x7fff, 0) << k << ", " << int{code};
      }
}

// Small n and large k: blocks divide k between them and leave their sums in the workspace.
TEST(FourBitMatmul, SplitK) {
  for (const std::size_t m : {1, 6, 12, 20, 40})
    expect_product({.m = m, .n = 33, .k = 64 * 67, .bias = m == 6}, static_cast<u32>(m));
  EXPECT_GT(nibble_matmul_four_bit_workspace(1, 33, 64 * 67), 0u);
  EXPECT_GT(nibble_matmul_four_bit_workspace(8, 4096, 4096), 0u);  // 128 blocks for 264 places
  EXPECT_EQ(nibble_matmul_four_bit_workspace(1, 4096, 4096), 0u);  // 256, of n = 16
  EXPECT_EQ(nibble_matmul_four_bit_workspace(1, 28672, 8192), 0u);
}

// Blocks that go through several steps, which the small shapes above are too small for: the ring of x comes round,
// and each of its synchronizations is needed.
template <class Kernel> void expect_steps(std::size_t m, bool nested) {
  const std::size_t k = Kernel::block_k * 2 * Kernel::stages + 64;  // the last step is in the first stage, as sums
  const Problem problem({.m = m, .n = Kernel::block_n - 3, .k = k, .nested = nested}, 9);
  SCOPED_TRACE(testing::PrintToString(problem.shape));
  const Product product(problem);
  std::vector<u16> expected;
  test::in_schedules([&] {
    const std::vector<u16> result = product.product_by<Kernel>();
    if (expected.empty()) expected = result;
    ASSERT_EQ(result, expected);
  });
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const Expected e = expected_at(problem, i / problem.shape.n, i % problem.shape.n);
    ASSERT_NEAR(value_of(NIBBLE_BF16, expected[i]), e.value, e.tolerance) << i;
  }
  EXPECT_THAT(test::survivors([&] { return product.product_by<Kernel>() == expected; }, 4), testing::IsEmpty());
}

NIBBLE_SIMULATED_TEST(FourBitMatmul, ManySteps) {
  expect_steps<FourBitMatmul<bf16, true, 1, 1, 8, 1>>(1, true);
  expect_steps<FourBitMatmul<bf16, false, 1, 1, 8, 1>>(4, false);
  expect_steps<FourBitMatmul<bf16, true, 1, 1, 8>>(1, true);
  expect_steps<FourBitMatmul<bf16, false, 1, 2, 4>>(7, false);
  expect_steps<FourBitMatmul<bf16, true, 2, 2, 4>>(13, true);
  expect_steps<FourBitMatmul<bf16, false, 2, 4, 2>>(16, false);
  expect_steps<FourBitMatmul<bf16, true, 4, 4, 2>>(30, true);
  expect_steps<FourBitMatmul<bf16, false, 8, 4, 2>>(61, false);
  expect_steps<FourBitMatmul<bf16, true, 8, 8, 1>>(64, true);
}

// The larger n, the higher the tiles.
TEST(FourBitMatmul, LargeN) {
  for (const std::size_t m : {1, 4, 5, 9, 33}) expect_product({.m = m, .n = 8193, .k = 64}, static_cast<u32>(m));
}

TEST(FourBitMatmul, NoInputsGiveTheBias) {
  const Problem problem({.m = 2, .n = 5, .k = 0, .nested = false, .bias = true}, 1);
  const std::vector<u16> product = Product(problem).product_written_once();
  for (std::size_t i = 0; i < product.size(); ++i) EXPECT_EQ(product[i], problem.bias[i % 5]);
}

// The error against fp64 products of the exact weights, next to that of a product with the weights rounded to the type
// of x and sums in fp32: what a library would compute from a dequantized weight. Largest errors are of the 256 values
// of one m, averaged over m: the largest of all is a matter of luck.
TEST(FourBitMatmul, ErrorIsThatOfRoundedWeightsOrLess) {
  for (const nibble_dtype dtype : {NIBBLE_BF16, NIBBLE_F16})
    for (const nibble_codebook codebook : {NIBBLE_NF4, NIBBLE_FP4}) {
      const Problem p({.m = 32, .n = 256, .k = 1024, .dtype = dtype, .codebook = codebook}, 3);
      const std::vector<u16> product = Product(p).product_written_once();
      double own = 0, own_max = 0, other = 0, other_max = 0;
      for (std::size_t at_m = 0; at_m < p.shape.m; ++at_m) {
        double row_max = 0, other_row_max = 0;
        for (std::size_t at_n = 0; at_n < p.shape.n; ++at_n) {
          double exact = 0;
          float sum = 0;
          for (std::size_t at_k = 0; at_k < p.shape.k; ++at_k) {
            const float weight = p.weight[at_n * p.shape.k + at_k];
            exact += double{weight} * double{p.x_at(at_m, at_k)};
            sum += rounded(dtype, weight) * p.x_at(at_m, at_k);
          }
          const double error = std::fabs(double{value_of(dtype, product[at_m * p.shape.n + at_n])} - exact);
          const double other_error = std::fabs(double{rounded(dtype, sum)} - exact);
          own += error * error;
          other += other_error * other_error;
          row_max = std::max(row_max, error);
          other_row_max = std::max(other_row_max, other_error);
        }
        own_max += row_max;
        other_max += other_row_max;
      }
      const double rms_ratio = std::sqrt(own / other), max_ratio = own_max / other_max;
      EXPECT_LE(rms_ratio, 1.1) << dtype << codebook;
      EXPECT_LE(max_ratio, 1.1) << dtype << codebook;
      RecordProperty((codebook == NIBBLE_NF4 ? "nf4_" : "fp4_") + std::string(dtype == NIBBLE_BF16 ? "bf16" : "fp16"),
                     std::to_string(rms_ratio) + " " + std::to_string(max_ratio));
    }
}

NIBBLE_SIMULATED_TEST(FourBitMatmul, EverySynchronizationIsNeeded) {
  for (const Shape& shape : {Shape{.m = 3, .n = 32, .k = 6144}, Shape{.m = 12, .n = 40, .k = 1536},
                             Shape{.m = 40, .n = 20, .k = 1024}, Shape{.m = 2, .n = 8, .k = 100}}) {
    SCOPED_TRACE(testing::PrintToString(shape));
    const Problem problem(shape, 5);
    const Product run(problem);
    const std::vector<u16> expected = run.product_written_once();
    EXPECT_THAT(test::survivors([&] { return run.product_written_once() == expected; }, 6), testing::IsEmpty());
  }
}

TEST(FourBitMatmul, ArgumentsAreChecked) {
  const Problem problem({.m = 2, .n = 3, .k = 64}, 1);
  const Product run(problem);
  const nibble_four_bit weight = run.weight();
  std::vector<u16> memory(65 * 64);
  nibble_matrix x{NIBBLE_BF16, 2, 64, 64, memory.data()}, y{NIBBLE_BF16, 2, 3, 3, memory.data()};
  const auto refusal = [&] {
    EXPECT_EQ(nibble_matmul_four_bit(&weight, &x, nullptr, &y, nullptr, 0, nullptr), NIBBLE_USAGE);
    return std::string(nibble_last_error());
  };
  x.rows = y.rows = 65;
  EXPECT_EQ(refusal(), "x.rows is 65, must be 1 to 64");
  x.rows = y.rows = 0;
  EXPECT_EQ(refusal(), "x.rows is 0, must be 1 to 64");
  x.rows = 2;
  EXPECT_EQ(refusal(), "y.rows is 0, x.rows is 2");
  y.rows = 2;
  y.columns = 2;
  EXPECT_EQ(refusal(), "y.columns is 2, weight.rows is 3");
  y.columns = 3;
  x.columns = 63;
  EXPECT_EQ(refusal(), "x.columns is 63, weight.columns is 64");
  x.columns = 64;
  y.dtype = NIBBLE_F16;
  EXPECT_EQ(refusal(), "y.dtype is not x.dtype");
  x.dtype = NIBBLE_F32;
  EXPECT_EQ(refusal(), "x.dtype is F32, must be F16 or BF16");
  x.dtype = y.dtype = NIBBLE_BF16;
  nibble_four_bit tall = weight;
  tall.columns = 8192;
  x = {NIBBLE_BF16, 1, 8192, 8192, memory.data()};
  y.rows = 1;
  EXPECT_EQ(nibble_matmul_four_bit(&tall, &x, nullptr, &y, nullptr, 0, nullptr), NIBBLE_USAGE);
  EXPECT_THAT(nibble_last_error(), testing::HasSubstr("workspace_bytes is 0, at least"));
}

}  // namespace
}  // namespace nibble::kernels
