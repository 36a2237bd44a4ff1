// nibble_dequantize_four_bit() against the CPU's decoders, bit for bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "nibble/fp4.hpp"
#include "nibble/kernels.h"
#include "nibble/nested.hpp"
#include "nibble/nf4.hpp"
#include "tests/kernels/quantize/dequantize_support.hpp"
#include "tests/kernels/schedules.hpp"
#include "tests/kernels/sparse_array.hpp"

namespace nibble::test {
namespace {

using testing::StrEq;

u64 ceil_div(u64 n, u64 size) { return (n + size - 1) / size; }

struct Case {
  nibble_codebook codebook = NIBBLE_NF4;
  u32 blocksize = 64;
  u64 n = 1, k = 64;
  bool nested = true;
  u64 packed_offset = 0;  // in bytes, behind a multiple of 256
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << (c.codebook == NIBBLE_NF4 ? "NF4" : "FP4") << (c.nested ? " nested, " : ", ") << c.n << " x " << c.k
             << ", blocks of " << c.blocksize << ", packed at byte " << c.packed_offset;
}

// A weight of random codes. Its absmax values have every magnitude: results are subnormal, or overflow fp16. They have
// either sign, as a search makes them.
class Weight {
 public:
  Weight(const Case& c, std::mt19937_64& random) : case_(c) {
    const u64 size = c.n * c.k, blocks = ceil_div(size, c.blocksize);
    const auto values = [&random](u64 n) {
      std::vector<float> v(n);
      std::uniform_int_distribution<int> exponent(-28, 18);
      for (float& x : v) {
        x = std::ldexp(1.0f + static_cast<float>(random() % 4096) / 4096, exponent(random));
        if (random() % 2 == 0) x = -x;
      }
      if (n > 3) v[n / 2] = 0.0f;
      return v;
    };
    const auto codes = [&random](u64 n) {
      std::vector<u8> v(n);
      for (u8& x : v) x = static_cast<u8>(random());
      return v;
    };
    const std::vector<u8> packed = codes(ceil_div(size, 2));
    packed_.emplace(DeviceArray<u8>::input(packed, {.offset_bytes = c.packed_offset, .name = "packed"}));
    std::vector<float> absmax(blocks);
    if (c.nested) {
      const std::vector<u8> absmax_codes = codes(blocks);
      const std::vector<float> nested_absmax = values(ceil_div(blocks, 256));
      const float offset = 0.37f;
      absmax_codes_.emplace(DeviceArray<u8>::input(absmax_codes, {.name = "absmax_codes"}));
      nested_absmax_.emplace(DeviceArray<float>::input(nested_absmax, {.name = "nested_absmax"}));
      nested_codebook_.emplace(DeviceArray<float>::input({nested::codebook.begin(), nested::codebook.end()}));
      nested_offset_.emplace(DeviceArray<float>::input({offset}));
      nested::decode(absmax_codes, nested_absmax, nested::codebook, offset, absmax);
    } else {
      absmax = values(blocks);
      absmax_.emplace(DeviceArray<float>::input(absmax, {.name = "absmax"}));
    }
    weights_.resize(size);
    (c.codebook == NIBBLE_NF4 ? nf4::decode : fp4::decode)(packed, absmax, c.blocksize, weights_);
  }

  [[nodiscard]] nibble_four_bit argument() const {
    const auto pointer = [](const auto& array) { return array ? array->data() : nullptr; };
    return {.struct_bytes = sizeof(nibble_four_bit),
            .codebook = case_.codebook,
            .blocksize = case_.blocksize,
            .rows = case_.n,
            .columns = case_.k,
            .packed = packed_->data(),
            .absmax = pointer(absmax_),
            .absmax_codes = pointer(absmax_codes_),
            .nested_absmax = pointer(nested_absmax_),
            .nested_codebook = pointer(nested_codebook_),
            .nested_offset = pointer(nested_offset_),
            .first = 0,
            .stride = 0};
  }
  [[nodiscard]] std::vector<u32> expected(nibble_dtype dtype, u64 first_row, u64 rows) const {
    return elements(dtype, first_row * case_.k, rows * case_.k);
  }
  [[nodiscard]] std::vector<u32> elements(nibble_dtype dtype, u64 first, u64 count) const {
    return rounded_bits(dtype, std::span(weights_).subspan(first, count));
  }

 private:
  Case case_;
  std::optional<DeviceArray<u8>> packed_, absmax_codes_;
  std::optional<DeviceArray<float>> absmax_, nested_absmax_, nested_codebook_, nested_offset_;
  std::vector<float> weights_;
};

void expect_equal(const Weight& weight, u64 first_row, u64 rows, nibble_dtype dtype, Layout layout) {
  const nibble_four_bit argument = weight.argument();
  const Result result(dtype, rows, argument.columns, layout);
  const nibble_matrix out = result.matrix();
  ASSERT_EQ(nibble_dequantize_four_bit(&argument, first_row, &out, nullptr), NIBBLE_OK) << nibble_last_error();
  const std::vector<u32> bits = result.bits(), expected = weight.expected(dtype, first_row, rows);
  ASSERT_EQ(bits.size(), expected.size());
  for (std::size_t i = 0; i < bits.size(); ++i) ASSERT_EQ(bits[i], expected[i]) << "element " << i;
}

TEST(FourBitDequantize, EveryFormat) {
  std::mt19937_64 random(1);
  for (const nibble_codebook codebook : {NIBBLE_NF4, NIBBLE_FP4})
    for (const bool nested : {false, true})
      for (u32 blocksize = 32; blocksize <= 4096; blocksize *= 2)
        for (const nibble_dtype dtype : dtypes) {
          const Case c{codebook, blocksize, 9, 640, nested};
          SCOPED_TRACE(testing::Message() << c << ", dtype " << dtype);
          expect_equal(Weight(c, random), 0, c.n, dtype, {});
        }
}

// Everything at random: what is fast, what is not, and ranges of rows that begin and end inside of blocks.
TEST(FourBitDequantize, AnyShapeLayoutAndAlignment) {
  std::mt19937_64 random(2);
  const auto upto = [&random](u64 n) { return random() % (n + 1); };
  for (int i = 0; i < 80; ++i) {
    constexpr u64 units[] = {1, 2, 8, 64};
    const u64 unit = units[upto(3)];
    const Case c{.codebook = upto(1) == 0 ? NIBBLE_NF4 : NIBBLE_FP4,
                 .blocksize = 32u << upto(7),
                 .n = 1 + upto(7),
                 .k = unit * (1 + upto(1100 / unit)),
                 .nested = upto(1) == 0,
                 .packed_offset = upto(1) * upto(7)};
    const u64 first_row = upto(1) * upto(c.n - 1);
    const u64 rows = upto(2) == 0 ? upto(c.n - first_row) : c.n - first_row;
    constexpr u64 gaps[] = {0, 0, 8, 64, 1, 5};
    const Layout layout{gaps[upto(5)], upto(2) == 0 ? upto(9) : 0};
    const nibble_dtype dtype = dtypes[upto(2)];
    SCOPED_TRACE(testing::Message() << c << ", rows from " << first_row << " on, " << rows << ", gap " << layout.gap
                                    << ", offset " << layout.offset << ", dtype " << dtype);
    const Weight weight(c, random);
    in_schedules([&] { expect_equal(weight, first_row, rows, dtype, layout); });
    if (testing::Test::HasFailure()) return;
  }
}

TEST(FourBitDequantize, LargerThanWhatRunsAtATime) {
  std::mt19937_64 random(3);
  const Weight weight({.blocksize = 32, .n = 40, .k = 3000}, random);
#if !defined(NIBBLE_ON_GPU)
  const device::simulator::ScopedOptions scope({.multiprocessors = 1});
#endif
  for (const nibble_dtype dtype : dtypes) {
    expect_equal(weight, 0, 40, dtype, {});
    expect_equal(weight, 1, 39, dtype, {.gap = 8});
    expect_equal(weight, 1, 39, dtype, {.gap = 1});
  }
}

NIBBLE_SIMULATED_TEST(FourBitDequantize, NothingWaits) {
  std::mt19937_64 random(7);
  const Weight weight({.n = 3, .k = 1100}, random);
  const device::simulator::ScopedOptions scope({.record_sites = true});
  for (const nibble_dtype dtype : dtypes)
    for (const u64 gap : {0, 1, 4}) expect_equal(weight, 0, 3, dtype, {.gap = gap});
  EXPECT_TRUE(scope.sites().empty()) << "a synchronization, which has to be tested by turning it off";
}

// A slice that begins anywhere, with rows of its own; with gaps in the result, and without.
TEST(FourBitDequantize, SlicesOfWholeRows) {
  std::mt19937_64 random(7);
  const Weight weight({.n = 40, .k = 96}, random);
  for (const u64 first : {u64{96} * 7, u64{8}, u64{1}, u64{1031}})
    for (const u64 gap : {0, 8})
      for (const nibble_dtype dtype : dtypes) {
        nibble_four_bit slice = weight.argument();
        slice.first = first;
        slice.rows = 20;
        slice.columns = 64;
        const Result result(dtype, 13, 64, {.gap = gap});
        const nibble_matrix out = result.matrix();
        ASSERT_EQ(nibble_dequantize_four_bit(&slice, 5, &out, nullptr), NIBBLE_OK) << nibble_last_error();
        EXPECT_EQ(result.bits(), weight.elements(dtype, first + u64{5} * 64, u64{13} * 64)) << first << ", " << gap;
      }
}

TEST(FourBitDequantize, NothingToDoNeedsNoLaunch) {
  std::mt19937_64 random(4);
  const Weight weight({.n = 3, .k = 64}, random);
  nibble_four_bit argument = weight.argument();
  nibble_matrix out{.struct_bytes = sizeof(nibble_matrix),
                    .dtype = NIBBLE_F32,
                    .rows = 0,
                    .columns = 64,
                    .stride = 64,
                    .data = nullptr};
#if !defined(NIBBLE_ON_GPU)
  const device::simulator::ScopedOptions scope({});
#endif
  EXPECT_EQ(nibble_dequantize_four_bit(&argument, 3, &out, nullptr), NIBBLE_OK);
  argument.columns = out.columns = out.stride = 0;
  out.rows = 3;
  EXPECT_EQ(nibble_dequantize_four_bit(&argument, 0, &out, nullptr), NIBBLE_OK);
#if !defined(NIBBLE_ON_GPU)
  EXPECT_EQ(scope.statistics().launches, 0u);
#endif
}

TEST(FourBitDequantize, RefusesWhatMakesNoSense) {
  std::mt19937_64 random(5);
  const Weight weight({.n = 3, .k = 64}, random);
  const nibble_four_bit good = weight.argument();
  const Result result(NIBBLE_F16, 3, 64, {});
  const nibble_matrix good_out = result.matrix();

  EXPECT_EQ(nibble_dequantize_four_bit(nullptr, 0, &good_out, nullptr), NIBBLE_USAGE);
  EXPECT_THAT(nibble_last_error(), StrEq("weight is null"));
  EXPECT_EQ(nibble_dequantize_four_bit(&good, 0, nullptr, nullptr), NIBBLE_USAGE);
  EXPECT_THAT(nibble_last_error(), StrEq("out is null"));
  EXPECT_EQ(nibble_dequantize_four_bit(&good, 1, &good_out, nullptr), NIBBLE_USAGE);
  EXPECT_THAT(nibble_last_error(), StrEq("first_row is 1 and out has 3 rows, the weight has 3"));
  EXPECT_EQ(nibble_dequantize_four_bit(&good, ~u64{0}, &good_out, nullptr), NIBBLE_USAGE);
  EXPECT_THAT(nibble_last_error(), StrEq("first_row is 18446744073709551615 and out has 3 rows, the weight has 3"));
  nibble_matrix out = good_out;
  out.columns = 63;
  EXPECT_EQ(nibble_dequantize_four_bit(&good, 0, &out, nullptr), NIBBLE_USAGE);
  EXPECT_THAT(nibble_last_error(), StrEq("out has 63 columns, the weight has 64"));
  nibble_four_bit other = good;
  other.blocksize = 48;
  EXPECT_EQ(nibble_dequantize_four_bit(&other, 0, &good_out, nullptr), NIBBLE_USAGE);
  EXPECT_THAT(nibble_last_error(), StrEq("weight.blocksize is 48, not a power of two from 32 to 4096"));
  other = good;
  other.stride = 128;
  EXPECT_EQ(nibble_dequantize_four_bit(&other, 0, &good_out, nullptr), NIBBLE_USAGE);
  EXPECT_THAT(nibble_last_error(), StrEq("weight.stride is 128, must be its 64 columns"));
}

// Three rows at the end of a weight of 2^33 elements and some, and a result whose rows are 2^32 elements apart.
NIBBLE_SIMULATED_TEST(FourBitDequantize, MoreThan32BitsCount) {
  constexpr u64 k = 4096, n = (u64{1} << 21) + 3, size = n * k, blocks = size / 64;
  constexpr u64 first_row = n - 3, first = first_row * k;
  const SparseArray<u8> packed(size / 2), absmax_codes(blocks);
  const SparseArray<float> nested_absmax(ceil_div(blocks, 256));
  const auto nested_codebook = DeviceArray<float>::input({nested::codebook.begin(), nested::codebook.end()});
  const auto nested_offset = DeviceArray<float>::input({0.25f});

  std::mt19937_64 random(6);
  for (u64 i = first / 2; i < size / 2; ++i) packed.data()[i] = static_cast<u8>(random());
  for (u64 i = first / 64; i < blocks; ++i) absmax_codes.data()[i] = static_cast<u8>(random());
  for (u64 i = first / 16384; i < ceil_div(blocks, 256); ++i)
    nested_absmax.data()[i] = 1.0f + static_cast<float>(random() % 1000) / 1000;

  // The last three rows end a nested block and begin another: the decoder gets all that these blocks have.
  constexpr u64 nested_begin = first / 16384 * 256;
  std::vector<float> absmax(blocks - nested_begin), weights(3 * k);
  nested::decode(std::span(absmax_codes.data() + nested_begin, absmax.size()),
                 std::span(nested_absmax.data() + nested_begin / 256, ceil_div(absmax.size(), 256)), nested::codebook,
                 0.25f, absmax);
  nf4::decode(std::span(packed.data() + first / 2, weights.size() / 2),
              std::span(absmax).subspan(first / 64 - nested_begin), 64, weights);

  const nibble_four_bit weight{.struct_bytes = sizeof(nibble_four_bit),
                               .codebook = NIBBLE_NF4,
                               .blocksize = 64,
                               .rows = n,
                               .columns = k,
                               .packed = packed.data(),
                               .absmax = nullptr,
                               .absmax_codes = absmax_codes.data(),
                               .nested_absmax = nested_absmax.data(),
                               .nested_codebook = nested_codebook.data(),
                               .nested_offset = nested_offset.data(),
                               .first = 0,
                               .stride = 0};
  for (const u64 more : {u64{0}, u64{1}}) {  // whole vectors, and weight by weight
    const u64 stride = (u64{1} << 32) + more;
    const SparseArray<device::u16> memory(2 * stride + k);
    const nibble_matrix out{.struct_bytes = sizeof(nibble_matrix),
                            .dtype = NIBBLE_BF16,
                            .rows = 3,
                            .columns = k,
                            .stride = stride,
                            .data = memory.data()};
    ASSERT_EQ(nibble_dequantize_four_bit(&weight, first_row, &out, nullptr), NIBBLE_OK) << nibble_last_error();
    for (u64 row = 0; row < 3; ++row)
      for (u64 i = 0; i < k; ++i)
        ASSERT_EQ(memory.data()[row * stride + i], bf16::from_float(weights[row * k + i])) << row << ", " << i;
  }
}

}  // namespace
}  // namespace nibble::test
