// NF4 and FP4 on the device against the codecs on the processor: the same bytes. One file, because all tests compare
// the same planes of both sides, and differ only in weights, shapes and sizes.
#include "kernels/quantize/four_bit_quantize.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <random>

#include "kernels/quantize/nested_quantize.hpp"
#include "kernels/quantize/nested_sums.hpp"
#include "nibble/kernels.hpp"
#include "nibble/nested.hpp"
#include "tests/kernels/schedules.hpp"
#include "tests/kernels/sparse_array.hpp"
#include "tests/kernels/weights.hpp"
#include "tests/simulator/array.hpp"

namespace nibble::kernels {
namespace {

using test::dtype_of;
using test::in_schedules;
using test::narrowed;
#if !defined(NIBBLE_ON_GPU)
using test::SparseArray;
#endif
using test::widened;
using testing::IsEmpty;
using testing::StrEq;

std::size_t workspace_of(u64 size, u32 blocksize, bool nested) {
  return cuda::quantize_workspace_bytes(size, blocksize, nested);
}

std::size_t blocks_of(std::size_t n, std::size_t size) { return (n + size - 1) / size; }

// Normal weights; some blocks of zeros, of denormals, of few values (ties), and if `special` some with NaN and
// infinity.
std::vector<float> weights_of(std::size_t n, std::size_t blocksize, unsigned seed, bool special) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 0.02f);
  constexpr float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> weights(n);
  for (std::size_t first = 0; first < n; first += blocksize) {
    const std::size_t end = std::min(first + blocksize, n);
    const unsigned kind = random() % 16;
    for (std::size_t i = first; i < end; ++i) {
      weights[i] = normal(random);
      if (kind == 0) weights[i] = i % 2 == 0 ? 0.0f : -0.0f;
      if (kind == 1) weights[i] *= 1e-38f;
      if (kind == 2) weights[i] = static_cast<float>(static_cast<int>(random() % 9) - 4) / 4;
      if (kind == 3) weights[i] *= 1e-43f;
      if (kind == 4) weights[i] *= 1e37f;
    }
    if (!special) continue;
    if (kind == 5) weights[first + random() % (end - first)] = nan;
    if (kind == 6) weights[first + random() % (end - first)] = -inf;
    if (kind == 7) weights[first] = inf, weights[end - 1] = nan;
    if (kind == 8)
      std::fill(weights.begin() + static_cast<long>(first), weights.begin() + static_cast<long>(end), -inf);
    if (kind == 9)
      std::fill(weights.begin() + static_cast<long>(first), weights.begin() + static_cast<long>(end), -nan);
  }
  return weights;
}

// --- What comes out, on both sides

struct FourBit {
  std::vector<u8> packed;
  std::vector<float> absmax;  // plain
  std::vector<u8> absmax_codes;
  std::vector<float> nested_absmax;
  float nested_offset = 0;
  u64 nonfinite = 0;
};

void expect_equal(const FourBit& actual, const FourBit& expected) {
  const auto bits = [](const std::vector<float>& values) {
    std::vector<u32> out(values.size());
    std::transform(values.begin(), values.end(), out.begin(), [](float value) { return std::bit_cast<u32>(value); });
    return out;
  };
  ASSERT_EQ(actual.packed, expected.packed);
  ASSERT_EQ(bits(actual.absmax), bits(expected.absmax));
  ASSERT_EQ(bits({actual.nested_offset}), bits({expected.nested_offset}));
  ASSERT_EQ(bits(actual.nested_absmax), bits(expected.nested_absmax));
  ASSERT_EQ(actual.absmax_codes, expected.absmax_codes);
  ASSERT_EQ(actual.nonfinite, expected.nonfinite);
}

FourBit by_codec(const std::vector<float>& weights, nibble_codebook codebook, std::size_t blocksize, bool nested) {
  FourBit out;
  const std::size_t n = weights.size(), blocks = blocks_of(n, blocksize);
  out.packed.resize(blocks_of(n, 2));
  out.absmax.resize(blocks);
  out.nonfinite = (codebook == NIBBLE_NF4 ? nf4::encode : fp4::encode)(weights, blocksize, out.packed, out.absmax);
  if (nested) {
    out.nested_offset = nested::offset(out.absmax);
    out.absmax_codes.resize(blocks);
    out.nested_absmax.resize(blocks_of(blocks, nested::blocksize));
    nested::encode(out.absmax, out.nested_offset, out.absmax_codes, out.nested_absmax);
    out.absmax.clear();
  }
  return out;
}

struct Case {
  std::size_t n;
  std::uint32_t blocksize;
  nibble_codebook codebook = NIBBLE_NF4;
  bool nested = false;
  std::size_t offset_bytes = 0;  // of the weights, from a multiple of 256
  std::size_t packed_offset = 0;
};

// Of NF4 in blocks of 64, not nested.
nibble_four_bit_output output_of(u8* packed, float* absmax) {
  nibble_four_bit_output out{};
  out.struct_bytes = sizeof out;
  out.codebook = NIBBLE_NF4;
  out.blocksize = 64;
  out.packed = packed;
  out.absmax = absmax;
  return out;
}

// What is in the workspace before is unknown.
template <class T> FourBit on_device(const std::vector<T>& weights, const Case& c) {
  const std::size_t blocks = blocks_of(c.n, c.blocksize), nested_blocks = blocks_of(blocks, nested::blocksize);
  const auto in = DeviceArray<T>::input(weights, {.offset_bytes = c.offset_bytes, .name = "weights"});
  const auto packed = DeviceArray<u8>::output(blocks_of(c.n, 2), {.offset_bytes = c.packed_offset, .name = "packed"});
  const auto absmax = DeviceArray<float>::output(c.nested ? 0 : blocks, {.name = "absmax"});
  const auto codes = DeviceArray<u8>::output(c.nested ? blocks : 0, {.offset_bytes = c.packed_offset, .name = "codes"});
  const auto nested_absmax = DeviceArray<float>::output(c.nested ? nested_blocks : 0, {.name = "nested_absmax"});
  const DeviceArray<float> offset(1);  // written, then read
  const DeviceArray<u8> workspace(workspace_of(c.n, c.blocksize, c.nested), {.name = "workspace"});
  const auto nonfinite = DeviceArray<u64>::workspace({1000});
  const nibble_four_bit_output out{.struct_bytes = sizeof(nibble_four_bit_output),
                                   .codebook = c.codebook,
                                   .blocksize = c.blocksize,
                                   .packed = packed.data(),
                                   .absmax = c.nested ? nullptr : absmax.data(),
                                   .absmax_codes = c.nested ? codes.data() : nullptr,
                                   .nested_absmax = c.nested ? nested_absmax.data() : nullptr,
                                   .nested_offset = c.nested ? offset.data() : nullptr};
  EXPECT_EQ(nibble_quantize_four_bit(in.data(), dtype_of<T>, c.n, &out, nonfinite.data(), workspace.data(),
                                     workspace.size(), nullptr),
            NIBBLE_OK)
      << nibble_last_error();
  return {packed.to_host(),
          absmax.to_host(),
          codes.to_host(),
          nested_absmax.to_host(),
          c.nested ? offset.to_host()[0] : 0.0f,
          nonfinite.to_host()[0] - 1000};
}

template <class T> void expect_codec(const std::vector<float>& values, const Case& c, int schedules = 3) {
  SCOPED_TRACE("n " + std::to_string(c.n) + ", blocksize " + std::to_string(c.blocksize) + ", codebook " +
               std::to_string(c.codebook) + ", nested " + std::to_string(c.nested) + ", dtype " +
               std::to_string(dtype_of<T>));
  const std::vector<T> weights = narrowed<T>(values);
  const FourBit expected = by_codec(widened(weights), c.codebook, c.blocksize, c.nested);
  in_schedules([&] { expect_equal(on_device(weights, c), expected); }, schedules);
}
void expect_codec_of_every_type(const std::vector<float>& values, Case c) {
  expect_codec<float>(values, c);
  expect_codec<bf16>(values, c);
  expect_codec<f16>(values, c);
}

// --- Shapes

TEST(FourBitQuantize, EveryBlocksizeAndTail) {
  unsigned seed = 0;
  for (const std::uint32_t blocksize : {32u, 64u, 128u, 256u, 512u, 1024u, 2048u, 4096u})
    for (const std::size_t n : {std::size_t{1}, std::size_t{blocksize - 1}, std::size_t{4096}, std::size_t{4096 + 7}}) {
      const auto values = weights_of(n, blocksize, ++seed, true);
      Case c{
          .n = n, .blocksize = blocksize, .codebook = seed % 2 == 0 ? NIBBLE_NF4 : NIBBLE_FP4, .nested = seed % 3 == 0};
      expect_codec_of_every_type(values, c);
    }
}

TEST(FourBitQuantize, ManyBlocks) {
  for (const std::uint32_t blocksize : {32u, 64u, 512u, 4096u})
    for (const bool nested : {false, true})
      for (const nibble_codebook codebook : {NIBBLE_NF4, NIBBLE_FP4}) {
        const std::size_t n = 5 * 4096 + 3 * blocksize + 33;
        expect_codec<bf16>(weights_of(n, blocksize, blocksize + nested, true), {n, blocksize, codebook, nested});
      }
}

TEST(FourBitQuantize, PointersNeedTheAlignmentOfTheirTypeOnly) {
  const auto values = weights_of(9000, 64, 1, true);
  for (const bool nested : {false, true}) {
    expect_codec<float>(values, {9000, 64, NIBBLE_NF4, nested, 4, 0});
    expect_codec<bf16>(values, {9000, 64, NIBBLE_NF4, nested, 2, 0});
    expect_codec<f16>(values, {9000, 64, NIBBLE_FP4, nested, 0, 1});
    expect_codec<f16>(values, {9000, 64, NIBBLE_FP4, nested, 14, 3});
  }
}

TEST(FourBitQuantize, WholeGroupsOfAbsmaxAndMore) {
  const std::size_t blocks = 2 * nested::group + 3 * nested::blocksize + 5, n = 32 * blocks;
  const auto values = weights_of(n, 32, 3, false);
  expect_codec<bf16>(values, {.n = n, .blocksize = 32, .nested = true});
  expect_codec<float>(values, {.n = n, .blocksize = 32, .nested = true}, 1);
}

// Then each warp has several nested blocks.
NIBBLE_SIMULATED_TEST(FourBitQuantize, ASmallDeviceTakesNestedBlocksInTurn) {
  const Case c{.n = 32 * (130 * nested::blocksize + 77), .blocksize = 32, .nested = true};
  const auto weights = narrowed<bf16>(weights_of(c.n, 32, 13, true));
  const FourBit expected = by_codec(widened(weights), NIBBLE_NF4, 32, true);
  in_schedules([&] {
    device::simulator::Options options = device::simulator::current_options();
    options.multiprocessors = 1;
    const device::simulator::ScopedOptions scope(options);
    expect_equal(on_device(weights, c), expected);
  });
}

NIBBLE_SIMULATED_TEST(FourBitQuantize, GroupsOfAbsmaxAreAddedInTheirOrder) {
  std::mt19937 random(12);
  std::lognormal_distribution<float> values(-3.0f, 4.0f);
  for (const std::size_t size : {std::size_t{1}, std::size_t{33}, std::size_t{64 * 128 + 1}, nested::group - 63,
                                 nested::group, 3 * nested::group + 64 * 129 - 1}) {
    SCOPED_TRACE(size);
    std::vector<float> absmax(size);
    std::ranges::generate(absmax, [&] { return values(random); });
    std::vector<double> expected;
    for (std::size_t at = 0; at < size; at += nested::group)
      expected.push_back(nested::group_sum(std::span(absmax).subspan(at, std::min(nested::group, size - at))));
    in_schedules([&] {
      const auto in = DeviceArray<float>::input(absmax);
      const auto sums = DeviceArray<double>::output(expected.size());
      launch({static_cast<u32>(expected.size())}, 0, nullptr, NestedSums{in.data(), size, sums.data()});
      EXPECT_EQ(sums.to_host(), expected);
    });
  }
}

TEST(FourBitQuantize, NoWeightsHaveTheOffsetZero) {
  expect_codec<float>({}, {.n = 0, .blocksize = 64, .nested = true});
  expect_codec<float>({}, {.n = 0, .blocksize = 64, .nested = false});
}

// --- Values

TEST(FourBitQuantize, EveryBf16FollowsTheCodec) {
  // Blocks of 32 with a 1 in front, so that v is the weight; then with other absmax.
  for (const float largest : {1.0f, 0.7f, 3e-39f})
    for (const nibble_codebook codebook : {NIBBLE_NF4, NIBBLE_FP4}) {
      std::vector<float> values;
      for (u32 bits = 0; bits < 0x10000; ++bits) {
        const float value = float_of(bits << 16);
        if (!(std::abs(value) <= largest)) continue;
        if (values.size() % 32 == 0) values.push_back(largest);
        values.push_back(value);
      }
      expect_codec<bf16>(values, {.n = values.size(), .blocksize = 32, .codebook = codebook}, 1);
    }
}

TEST(FourBitQuantize, EveryMidpointAndItsNeighboursFollowTheCodec) {
  for (const nibble_codebook codebook : {NIBBLE_NF4, NIBBLE_FP4})
    for (const float largest : {1.0f, 0.3f, 1e-38f, 2e38f}) {
      std::vector<float> values;
      const FourBitSearch& search = codebook == NIBBLE_NF4 ? Nf4::search : Fp4::search;
      for (const float midpoint : search.threshold) {
        if (midpoint == infinity) continue;
        float value = midpoint * largest;
        for (int i = 0; i < 20; ++i) value = std::nextafter(value, -infinity);
        for (int i = 0; i < 40; ++i, value = std::nextafter(value, infinity)) {
          if (values.size() % 64 == 0) values.push_back(-largest);
          values.push_back(value);
        }
      }
      for (const float value : {1e-45f, -1e-45f, 0.0f, -0.0f}) values.push_back(value);
      expect_codec<float>(values, {.n = values.size(), .blocksize = 64, .codebook = codebook}, 1);
    }
}

TEST(FourBitQuantize, TheParabolaIsRightForEveryNumberInEveryBinade) {
  // All that the kernel assumes of it, in fp32 as the device has it, for a dense set of v.
  const auto check = [](const FourBitSearch& search, float v) {
    u32 number = 0;
    while (number < 15 && v > search.threshold[number]) ++number;
    const float rounded = fma_rn(v, fma_rn(-search.curve, std::abs(v), search.slope), search.rounder + search.middle);
    const u32 guess = (bits_of(rounded) >> search.fraction_bits) - search.rounder_bits;
    ASSERT_TRUE(guess == number || guess + 1 == number) << v << ": " << guess << ", not " << number;
  };
  for (const FourBitSearch& search : {Nf4::search, Fp4::search})
    for (u32 bits = 0; bits <= bits_of(1.0000002f); bits += 997)
      for (const float v : {float_of(bits), -float_of(bits)}) check(search, v);
}

NIBBLE_SIMULATED_TEST(FourBitQuantize, NestedCodesOfEveryMidpointAndItsNeighbours) {
  std::vector<float> values;
  for (std::size_t i = 0; i < 255; ++i) {
    const float midpoint = 0.5f * (nested::codebook[i] + nested::codebook[i + 1]);
    for (const float value : {midpoint, std::nextafter(midpoint, 9.0f), std::nextafter(midpoint, -9.0f)}) {
      if (values.size() % nested::blocksize == 0) values.push_back(1.0f);  // so that the nested absmax is 1
      values.push_back(value);
    }
  }
  for (const float offset : {0.0f, 0.25f}) {
    std::vector<u8> expected(values.size());
    std::vector<float> expected_absmax(blocks_of(values.size(), nested::blocksize));
    nested::encode(values, offset, expected, expected_absmax);
    const auto absmax = DeviceArray<float>::workspace(values);
    // Their mean is `offset` if that is what the only group's sum says.
    const auto sums =
        DeviceArray<double>::workspace({static_cast<double>(offset) * static_cast<double>(values.size())});
    const auto mean = DeviceArray<float>::output(1);
    const auto codes = DeviceArray<u8>::output(values.size());
    const auto nested_absmax = DeviceArray<float>::output(expected_absmax.size());
    launch(
        {1}, 0, nullptr,
        NestedCodes{absmax.data(), values.size(), sums.data(), mean.data(), true, codes.data(), nested_absmax.data()});
    EXPECT_EQ(mean.to_host(), std::vector<float>{offset});
    EXPECT_EQ(codes.to_host(), expected);
    EXPECT_EQ(nested_absmax.to_host(), expected_absmax);
  }
}

TEST(FourBitQuantize, EqualAndSubnormalAbsmaxAreNested) {
  for (const float value : {0.0f, 0.1f, 3e38f, 1e-45f}) {
    std::vector<float> values(64 * 300, value);
    expect_codec<float>(values, {.n = values.size(), .blocksize = 64, .nested = true}, 1);
    values[64 * 299] = 1e-44f;  // differences whose reciprocal is infinite, where value is small
    values[0] = -3e-45f;
    expect_codec<float>(values, {.n = values.size(), .blocksize = 64, .nested = true}, 1);
  }
}

TEST(FourBitQuantize, NonfiniteBlocksNeedNotBeCounted) {
  const std::vector<float> values(64, std::numeric_limits<float>::quiet_NaN());
  const auto in = DeviceArray<float>::input(values);
  const auto packed = DeviceArray<u8>::output(32);
  const auto absmax = DeviceArray<float>::output(1);
  const nibble_four_bit_output out = output_of(packed.data(), absmax.data());
  cuda::quantize(in.data(), NIBBLE_F32, 64, out, nullptr, nullptr, 0, nullptr);
  EXPECT_EQ(packed.to_host(), std::vector<u8>(32, 0x77));
  EXPECT_EQ(absmax.to_host(), std::vector<float>(1, 0.0f));
}

#if !defined(NIBBLE_ON_GPU)

// --- Sizes that 32 bits do not hold, of which the thread blocks around one weight run

// All weights are zeros but those from 4096 before `middle` on, which end 8225 behind it: in four tiles.
template <class T>
void expect_codec_around(u64 middle, const Case& c, device::simulator::BlockRange (*part)(device::Grid),
                         int schedules = 3) {
  SCOPED_TRACE("middle " + std::to_string(middle) + ", codebook " + std::to_string(c.codebook) + ", nested " +
               std::to_string(c.nested) + ", dtype " + std::to_string(dtype_of<T>));
  const u64 first = middle - 4096, n = middle + 8225;
  const auto weights = narrowed<T>(weights_of(n - first, c.blocksize, 9, true));
  const u64 blocks = blocks_of(n, c.blocksize), first_block = first / c.blocksize;
  const u64 first_nested = first_block / nested::blocksize, nested_blocks = blocks_of(blocks, nested::blocksize);

  const SparseArray<float> all_absmax(blocks);
  const std::span absmax_of_weights(all_absmax.data() + first_block, blocks - first_block);
  std::vector<u8> expected(blocks_of(n - first, 2));
  const u64 expected_nonfinite = (c.codebook == NIBBLE_NF4 ? nf4::encode : fp4::encode)(widened(weights), c.blocksize,
                                                                                        expected, absmax_of_weights);
  // nested::offset() of them, without the groups of zeros.
  double sum = 0;
  for (u64 at = first_block / nested::group * nested::group; at < blocks; at += nested::group)
    sum += nested::group_sum({all_absmax.data() + at, std::min<u64>(nested::group, blocks - at)});
  const auto expected_offset = static_cast<float>(sum / static_cast<double>(blocks));
  const u64 first_code = first_nested * nested::blocksize;
  std::vector<u8> expected_codes(c.nested ? blocks - first_code : 0);
  std::vector<float> expected_nested(c.nested ? nested_blocks - first_nested : 0);
  if (c.nested)
    nested::encode({all_absmax.data() + first_code, blocks - first_code}, expected_offset, expected_codes,
                   expected_nested);

  const SparseArray<T> in(n + c.offset_bytes / sizeof(T));
  T* const data = in.data() + c.offset_bytes / sizeof(T);
  std::copy(weights.begin(), weights.end(), data + first);
  in_schedules(
      [&] {
        const SparseArray<u8> packed(expected.size() + first / 2), codes(blocks);
        const SparseArray<float> absmax(blocks), nested_absmax(nested_blocks);
        const DeviceArray<float> offset(1);
        const auto nonfinite = DeviceArray<u64>::workspace({0});
        // What the blocks before have written is zeros, as it would be.
        const std::size_t workspace_bytes = workspace_of(n, c.blocksize, c.nested);
        const SparseArray<u8> workspace(workspace_bytes + 1);
        const nibble_four_bit_output out{.struct_bytes = sizeof(nibble_four_bit_output),
                                         .codebook = c.codebook,
                                         .blocksize = c.blocksize,
                                         .packed = packed.data(),
                                         .absmax = c.nested ? nullptr : absmax.data(),
                                         .absmax_codes = c.nested ? codes.data() : nullptr,
                                         .nested_absmax = c.nested ? nested_absmax.data() : nullptr,
                                         .nested_offset = c.nested ? offset.data() : nullptr};
        // So that the last four blocks of the grid have the last absmax.
        device::simulator::Options options = device::simulator::current_options();
        options.multiprocessors = 1u << 30;
        const device::simulator::ScopedOptions scope(options);
        ASSERT_EQ(nibble_quantize_four_bit(data, dtype_of<T>, n, &out, nonfinite.data(), workspace.data(),
                                           workspace_bytes, nullptr),
                  NIBBLE_OK)
            << nibble_last_error();
        ASSERT_TRUE(std::ranges::equal(std::span(packed.data() + first / 2, expected.size()), expected));
        ASSERT_EQ(nonfinite.to_host()[0], expected_nonfinite);
        if (!c.nested) {
          const std::span actual(absmax.data() + first_block, blocks - first_block);
          ASSERT_TRUE(std::ranges::equal(actual, absmax_of_weights));
          return;
        }
        ASSERT_EQ(offset.to_host()[0], expected_offset);
        ASSERT_TRUE(std::ranges::equal(std::span(codes.data() + first_code, expected_codes.size()), expected_codes));
        ASSERT_TRUE(std::ranges::equal(std::span(nested_absmax.data() + first_nested, expected_nested.size()),
                                       expected_nested));
      },
      schedules, part);
}

TEST(FourBitQuantize, MoreThan32BitsCount) {
  constexpr u64 middle = u64{1} << 33;  // packed bytes beyond 2^32
  for (const nibble_codebook codebook : {NIBBLE_NF4, NIBBLE_FP4})
    for (const bool nested : {false, true}) {
      expect_codec_around<bf16>(middle, {.n = 0, .blocksize = 512, .codebook = codebook, .nested = nested},
                                test::last_four);
      expect_codec_around<float>(middle, {0, 512, codebook, nested, sizeof(float)}, test::last_four);
    }
}

TEST(FourBitQuantize, MoreThan32BitsCountNestedCodes) {
  expect_codec_around<bf16>(u64{1} << 38, {.n = 0, .blocksize = 32, .nested = true}, test::last_four, 1);
}

TEST(FourBitQuantize, TheGridHasAnotherRow) {
  using Kernel = FourBitQuantize<bf16, Nf4>;
  static constexpr u64 width = Kernel::grid_width, middle = width * Kernel::tile;
  const Case c{.n = 0, .blocksize = 4096};
  expect_codec_around<bf16>(middle, c, [](device::Grid grid) {
    EXPECT_EQ(grid.x, width);
    EXPECT_EQ(grid.y, 2u);
    return device::simulator::BlockRange{width - 1, width + 4};
  });
}

// The blocks at the end of the last row have no weights.
TEST(FourBitQuantize, TheGridsLastRowHasAnEnd) {
  device::simulator::Options options;
  options.part = test::last_four;
  const device::simulator::ScopedOptions scope(options);
  const auto one = DeviceArray<u8>::input({0});
  const auto untouched = DeviceArray<float>::input({0});
  const u64 size = u64{FourBitQuantize<float, Nf4>::grid_width} * 4096 + 1;
  const nibble_four_bit_output out = output_of(one.data(), untouched.data());
  EXPECT_EQ(nibble_quantize_four_bit(untouched.data(), NIBBLE_F32, size, &out, nullptr, nullptr, 0, nullptr),
            NIBBLE_OK);
  EXPECT_EQ(scope.statistics().blocks, 4u);
}

TEST(FourBitQuantize, DoubleQuantizationTakesThreeLaunchesThatOverlap) {
  for (const std::size_t n : {std::size_t{0}, std::size_t{64}, std::size_t{32 * 3 * nested::group}}) {
    const std::vector<bf16> weights(n);
    for (const bool nested : {false, true}) {
      const device::simulator::ScopedOptions scope({});
      (void)on_device(weights, {.n = n, .blocksize = 32, .nested = nested});
      const u64 of_nested = nested ? u64{n > 0} + 1 : 0;
      EXPECT_EQ(scope.statistics().launches, u64{n > 0} + of_nested);
      EXPECT_EQ(scope.statistics().overlapping_launches, of_nested);
      const u64 of_weights = blocks_of(n, 4096), of_sums = nested ? blocks_of(n, 32 * nested::group) : 0;
      EXPECT_EQ(scope.statistics().launched_dependents, of_weights + of_sums);
    }
  }
}

// --- Faults

TEST(FourBitQuantize, EverySynchronizationIsNeeded) {
  // Blocks of several warps, and more absmax than a row of their group.
  for (const Case& c :
       {Case{.n = 16384, .blocksize = 2048, .nested = true}, Case{.n = 64 * 1100, .blocksize = 64, .nested = true}}) {
    auto values = weights_of(c.n, c.blocksize, 5, false);
    values[100] = infinity;
    const auto weights = narrowed<bf16>(values);
    const FourBit expected = by_codec(widened(weights), c.codebook, c.blocksize, c.nested);
    const auto run = [&] {
      const FourBit actual = on_device(weights, c);
      return actual.packed == expected.packed && actual.absmax_codes == expected.absmax_codes &&
             actual.nested_absmax == expected.nested_absmax && actual.nested_offset == expected.nested_offset;
    };
    EXPECT_TRUE(run());
    EXPECT_THAT(test::survivors(run, 6), IsEmpty());
  }
}
#endif

alignas(16) char memory[4096];

TEST(FourBitQuantize, ArgumentsThatMakeNoSenseAreRefused) {
  auto* const bytes = reinterpret_cast<u8*>(memory);
  auto* const floats = reinterpret_cast<float*>(memory);
  const nibble_four_bit_output plain = output_of(bytes, floats);
  nibble_four_bit_output nested = output_of(bytes, nullptr);
  nested.absmax_codes = bytes;
  nested.nested_absmax = floats;
  nested.nested_offset = floats;
  const auto refusal = [&](nibble_four_bit_output out, auto&& change, const void* weights = memory,
                           std::size_t workspace_bytes = 4096, void* workspace = memory) {
    change(out);
    const int status =
        nibble_quantize_four_bit(weights, NIBBLE_F32, 128, &out, nullptr, workspace, workspace_bytes, nullptr);
    EXPECT_EQ(status, NIBBLE_USAGE);
    return std::string(status == NIBBLE_OK ? "" : nibble_last_error());
  };
  const auto nothing = [](auto&) {};
  EXPECT_EQ(refusal(plain, nothing, nullptr), "weights is null");
  EXPECT_EQ(refusal(plain, nothing, memory + 2), "weights is 2 bytes past a multiple of 4, its alignment");
  EXPECT_EQ(refusal(plain, [](auto& out) { out.packed = nullptr; }), "out.packed is null");
  EXPECT_EQ(refusal(plain, [](auto& out) { out.absmax = nullptr; }), "out has neither absmax nor absmax_codes");
  EXPECT_EQ(refusal(plain, [](auto& out) { out.blocksize = 48; }),
            "out.blocksize is 48, not a power of two from 32 to 4096");
  EXPECT_EQ(refusal(nested, [&](auto& out) { out.absmax = floats; }),
            "out has both absmax and absmax_codes, must have one of them");
  EXPECT_EQ(refusal(nested, [](auto& out) { out.nested_offset = nullptr; }), "out.nested_offset is null");
  EXPECT_EQ(refusal(nested, [](auto& out) { out.nested_absmax = nullptr; }), "out.nested_absmax is null");
  EXPECT_EQ(refusal(nested, nothing, memory, 23), "workspace_bytes is 23, at least 24 are needed");
  EXPECT_EQ(refusal(nested, nothing, memory, 24, nullptr), "workspace is null");
  EXPECT_EQ(refusal(plain, [](auto& out) { out.struct_bytes = 8; }),
            "out.struct_bytes is 8, not from " + std::to_string(sizeof plain) + " to 4096");
  EXPECT_EQ(nibble_quantize_four_bit(memory, NIBBLE_F32, 128, nullptr, nullptr, nullptr, 0, nullptr), NIBBLE_USAGE);
  EXPECT_THAT(nibble_last_error(), StrEq("out is null"));
}

TEST(FourBitQuantize, WorkspaceHoldsEveryAbsmaxAndTheSumsOfGroups) {
  EXPECT_EQ(workspace_of(1000, 64, false), 0u);
  EXPECT_EQ(workspace_of(0, 64, true), 0u);
  EXPECT_EQ(workspace_of(1000, 64, true), 16 * 4u + 8);
  EXPECT_EQ(workspace_of(u64{1} << 33, 64, true), (std::size_t{1} << 29) + 8 * 8192);
}

TEST(FourBitQuantize, TheWorkspaceIsRefusedAsTheCallIs) {
  const auto refusal = [](u64 size, u32 blocksize, std::size_t* bytes) {
    const int plain = nibble_quantize_four_bit_workspace(size, blocksize, 0, bytes);
    const std::string text = nibble_last_error();
    EXPECT_EQ(plain, nibble_quantize_four_bit_workspace(size, blocksize, 1, bytes));
    EXPECT_EQ(text, nibble_last_error());
    return plain == NIBBLE_USAGE ? text : "not refused";
  };
  std::size_t bytes = 123;
  EXPECT_EQ(refusal(1000, 48, &bytes), "blocksize is 48, not a power of two from 32 to 4096");
  EXPECT_EQ(refusal(1000, 0, &bytes), "blocksize is 0, not a power of two from 32 to 4096");
  EXPECT_EQ(refusal((u64{1} << 48) + 1, 64, &bytes),
            "weights has 281474976710657 x 1 elements, at most 2^48 are possible");
  EXPECT_EQ(bytes, 123u);
  EXPECT_EQ(refusal(1000, 64, nullptr), "bytes is null");
  EXPECT_EQ(refusal(1000, 64, reinterpret_cast<std::size_t*>(reinterpret_cast<char*>(&bytes) + 4)),
            "bytes is 4 bytes past a multiple of 8, its alignment");
}

}  // namespace
}  // namespace nibble::kernels
