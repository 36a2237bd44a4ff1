// LLM.int8() on the device against the codec on the processor: the same bytes.
#include "kernels/quantize/int8_quantize.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <random>

#include "nibble/int8.hpp"
#include "nibble/kernels.hpp"
#include "tests/kernels/schedules.hpp"
#include "tests/kernels/sparse_array.hpp"
#include "tests/kernels/weights.hpp"
#include "tests/simulator/array.hpp"

namespace nibble::kernels {
namespace {

using test::in_schedules;
using test::narrowed;
#if !defined(NIBBLE_ON_GPU)
using test::SparseArray;
#endif
using test::widened;
using testing::IsEmpty;

// Normal weights; some rows of zeros, of subnormal fp16, of few values (ties), beyond fp16, with NaN and infinity.
std::vector<float> rows_of(std::size_t n, std::size_t stride, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 0.02f);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> weights(n * stride);
  for (std::size_t row = 0; row < n; ++row) {
    const std::span<float> values(weights.data() + row * stride, stride);
    const auto kind = static_cast<unsigned>(random() % 12);
    for (float& value : values) {
      value = normal(random);
      if (kind == 0) value = random() % 2 == 0 ? 0.0f : -0.0f;
      if (kind == 1) value *= 1e-5f;
      if (kind == 2) value = static_cast<float>(static_cast<int>(random() % 255) - 127) / 2;
      if (kind == 3) value *= 1e-30f;
      if (kind == 4) value *= 3e6f;  // around 65504
      if (kind == 8) value = -infinity;
    }
    float& one = values[random() % stride];
    if (kind == 4) one = -65520.0f;
    if (kind == 5) one = nan;
    if (kind == 6) one = -infinity;
    if (kind == 7) one = 65519.0f;
    if (kind == 7) values[0] = nan, values[stride - 1] = infinity;
  }
  return weights;
}

struct Rows {
  std::vector<i8> codes;
  std::vector<u32> absmax_bits;
  u64 nonfinite = 0;
  bool operator==(const Rows&) const = default;
};

struct Case {
  std::size_t n, k;
  std::size_t more = 0;          // of the stride
  std::size_t offset_bytes = 0;  // of the weights, from a multiple of 256
  std::size_t codes_offset = 0;
};

std::vector<u32> bits(const std::vector<float>& values) {
  std::vector<u32> out(values.size());
  std::transform(values.begin(), values.end(), out.begin(), [](float value) { return std::bit_cast<u32>(value); });
  return out;
}

Rows by_codec(const std::vector<float>& weights, const Case& c) {
  Rows out{std::vector<i8>(c.n * c.k), {}, 0};
  std::vector<float> absmax;
  for (std::size_t row = 0; row < c.n; ++row) {
    const std::span<const float> values(weights.data() + row * (c.k + c.more), c.k);
    absmax.push_back(int8::encode_row(values, std::span(out.codes).subspan(row * c.k, c.k)));
    out.nonfinite += std::any_of(values.begin(), values.end(), [](float w) { return !(std::abs(w) < fp16_overflow); });
  }
  out.absmax_bits = bits(absmax);
  return out;
}

template <class T> Rows on_device(const std::vector<T>& weights, const Case& c) {
  const auto in = DeviceArray<T>::input(weights, {.offset_bytes = c.offset_bytes, .name = "weights"});
  const auto codes = DeviceArray<i8>::output(c.n * c.k, {.offset_bytes = c.codes_offset, .name = "codes"});
  const auto absmax = DeviceArray<float>::output(c.n, {.name = "absmax"});
  const auto nonfinite = DeviceArray<u64>::workspace({1000});
  const nibble_matrix matrix{sizeof(nibble_matrix), test::dtype_of<T>, c.n, c.k, c.k + c.more, in.data()};
  cuda::quantize(matrix, codes.data(), absmax.data(), nonfinite.data(), nullptr);
  return {codes.to_host(), bits(absmax.to_host()), nonfinite.to_host()[0] - 1000};
}

template <class T> void expect_codec(const std::vector<float>& values, const Case& c, int schedules = 3) {
  SCOPED_TRACE(std::to_string(c.n) + " x " + std::to_string(c.k) + ", dtype " + std::to_string(test::dtype_of<T>));
  const std::vector<T> weights = narrowed<T>(values);
  const Rows expected = by_codec(widened(weights), c);
  in_schedules([&] { ASSERT_EQ(on_device(weights, c), expected); }, schedules);
}
void expect_codec_of_every_type(const Case& c, unsigned seed, int schedules = 3) {
  const auto values = rows_of(c.n, c.k + c.more, seed);
  expect_codec<float>(values, c, schedules);
  expect_codec<bf16>(values, c, schedules);
  expect_codec<f16>(values, c, schedules);
}

TEST(Int8Quantize, RowsOfEveryLength) {
  unsigned seed = 0;
  for (const std::size_t k : {1,   2,   3,   4,   7,    8,    9,    31,   32,   33,   63,   64,   65,   127, 255,
                              256, 257, 500, 512, 1000, 1023, 1024, 1025, 1032, 2048, 2056, 4096, 4104, 5000})
    expect_codec_of_every_type({k < 100 ? std::size_t{24} : 6, k}, ++seed);
}

TEST(Int8Quantize, RowsLongerThanTheRegistersHold) {
  for (const std::size_t k : {8192, 16384, 16385, 16392, 21000})
    expect_codec_of_every_type({3, k}, static_cast<unsigned>(k), 1);
}

TEST(Int8Quantize, StridesAndAlignments) {
  for (const std::size_t k : {64, 65, 2048}) {
    expect_codec_of_every_type({5, k, 3}, 1);
    expect_codec_of_every_type({5, k, 8}, 2);
    expect_codec_of_every_type({5, k, 0, 4}, 3);
    expect_codec_of_every_type({5, k, 0, 0, 1}, 4);
    expect_codec_of_every_type({5, k, 8, 16, 8}, 5);
  }
}

TEST(Int8Quantize, EveryFp16FollowsTheCodec) {
  // As bf16 and as fp32 with neighbours between two fp16, where rounding decides.
  std::vector<float> values;
  for (u32 half = 0; half < 0x7c00; ++half) {
    const float value = to_float(f16{static_cast<u16>(half)}), next = to_float(f16{static_cast<u16>(half + 1)});
    const float middle = half == 0x7bff ? 65519.996f : value + (next - value) / 2;
    for (const float v : {value, middle, std::nextafter(middle, 0.0f), std::nextafter(middle, infinity)})
      values.push_back(half % 2 == 0 ? v : -v);
  }
  while (values.size() % 1024 != 0) values.push_back(0);
  expect_codec<float>(values, {values.size() / 1024, 1024}, 1);
  expect_codec<bf16>(values, {values.size() / 1024, 1024}, 1);
  expect_codec<f16>(values, {values.size() / 1024, 1024}, 1);
}

TEST(Int8Quantize, EmptyMatrices) {
  expect_codec<float>({}, {0, 5});
  expect_codec<float>({}, {5, 0});
}

#if !defined(NIBBLE_ON_GPU)

// Sizes that 32 bits do not hold: `some` rows from `first_row` on, the rest is zeros and not looked at.
template <class T>
void expect_codec_at(u64 n, u64 first_row, u64 some, const Case& c,
                     device::simulator::BlockRange (*part)(device::Grid)) {
  SCOPED_TRACE(std::to_string(n) + " x " + std::to_string(c.k) + ", dtype " + std::to_string(test::dtype_of<T>));
  const u64 stride = c.k + c.more;
  const SparseArray<T> in(n * stride);
  Rows expected;
  std::vector<float> expected_absmax;
  for (u64 row = 0; row < some; ++row) {
    const auto weights = narrowed<T>(rows_of(1, c.k, static_cast<unsigned>(row) + 1));
    std::copy(weights.begin(), weights.end(), in.data() + (first_row + row) * stride);
    const Rows one = by_codec(widened(weights), {1, c.k});
    expected.codes.insert(expected.codes.end(), one.codes.begin(), one.codes.end());
    expected.absmax_bits.push_back(one.absmax_bits[0]);
    expected.nonfinite += one.nonfinite;
  }
  in_schedules(
      [&] {
        const SparseArray<i8> codes(n * c.k);
        const SparseArray<float> absmax(n);
        const auto nonfinite = DeviceArray<u64>::workspace({0});
        const nibble_matrix matrix{sizeof(nibble_matrix), test::dtype_of<T>, n, c.k, stride, in.data()};
        cuda::quantize(matrix, codes.data(), absmax.data(), nonfinite.data(), nullptr);
        const i8* const from = codes.data() + first_row * c.k;
        const float* const absmax_from = absmax.data() + first_row;
        const Rows actual{{from, from + some * c.k}, bits({absmax_from, absmax_from + some}), nonfinite.to_host()[0]};
        ASSERT_EQ(actual, expected);
      },
      3, part);
}

// Blocks in two rows of the grid, of weights and codes beyond 2^32.
TEST(Int8Quantize, MoreRowsThanTheGridHasColumns) {
  static constexpr u64 width = Int8Quantize<bf16, 32>::grid_width;
  const auto part = [](device::Grid grid) {
    EXPECT_EQ(grid.x, width);
    EXPECT_EQ(grid.y, 2u);
    return device::simulator::BlockRange{width - 3, width + 20};
  };
  expect_codec_at<bf16>(width + 20, width - 3, 23, {0, 8}, part);
  expect_codec_at<float>(width + 20, width - 3, 23, {0, 7, 2}, part);
  expect_codec_at<bf16>(width + 20, width, 0, {0, 8}, test::last_four);  // no rows
}

TEST(Int8Quantize, RowsFarApart) {
  for (const std::size_t k : {600, 2056, 20000}) expect_codec_at<bf16>(4, 0, 4, {0, k, std::size_t{1} << 32}, nullptr);
}

TEST(Int8Quantize, EverySynchronizationIsNeeded) {
  for (const std::size_t k : {4096, 16384}) {
    std::vector<float> values = rows_of(2, k, 2);
    values[k - 1] = infinity;
    values[3] = -3.0f;
    const Case c{2, k};
    const auto weights = narrowed<bf16>(values);
    const Rows expected = by_codec(widened(weights), c);
    const auto run = [&] { return on_device(weights, c) == expected; };
    EXPECT_TRUE(run());
    EXPECT_THAT(test::survivors(run, 6), IsEmpty());
  }
}
#endif

TEST(Int8Quantize, ArgumentsThatMakeNoSenseAreRefused) {
  alignas(16) static char memory[256];
  const nibble_matrix good{sizeof(nibble_matrix), NIBBLE_F32, 2, 3, 3, memory};
  auto* const codes = reinterpret_cast<i8*>(memory);
  auto* const absmax = reinterpret_cast<float*>(memory);
  const auto refusal = [](int status) {
    EXPECT_EQ(status, NIBBLE_USAGE);
    return std::string(nibble_last_error());
  };
  EXPECT_EQ(refusal(nibble_quantize_int8(nullptr, codes, absmax, nullptr, nullptr)), "weights is null");
  EXPECT_EQ(refusal(nibble_quantize_int8(&good, nullptr, absmax, nullptr, nullptr)), "codes is null");
  EXPECT_EQ(refusal(nibble_quantize_int8(&good, codes, nullptr, nullptr, nullptr)), "absmax is null");
  auto* const odd = reinterpret_cast<u64*>(memory + 4);
  EXPECT_EQ(refusal(nibble_quantize_int8(&good, codes, absmax, odd, nullptr)),
            "nonfinite_rows is 4 bytes past a multiple of 8, its alignment");
  for (const u64 columns : {0U, 1U}) {
    const nibble_matrix high{sizeof(nibble_matrix), NIBBLE_F32, (u64{1} << 30) * 65535 + 1, columns, columns, memory};
    EXPECT_EQ(refusal(nibble_quantize_int8(&high, codes, absmax, nullptr, nullptr)),
              "weights has 70367670435841 rows, at most 70367670435840 are possible");
  }
}

}  // namespace
}  // namespace nibble::kernels
