// Products of few rows in bf16 with codes, in integers of 16 bits: for x86 processors without AVX-512, where a lookup
// of two bytes and a product of pairs take half as many instructions as those of fp32. Compiled once per CPU target.
#include <array>
#include <cstring>

#include "quant/codecs/four_bit/four_bit.hpp"
#include "quant/matmul/codes/code_kernel.hpp"
#include "quant/matmul/codes/int16_numbers.hpp"
#include "quant/matmul/counts.hpp"
#include "quant/simd/prefetch.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/matmul/codes/code_kernel_int16.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace nibble::matmul::HWY_NAMESPACE {
namespace {

#if HWY_ARCH_X86 && HWY_TARGET > HWY_AVX3 && HWY_TARGET <= HWY_SSSE3

namespace hn = hwy::HWY_NAMESPACE;

using D16 = hn::CappedTag<std::int16_t, 16>;
using D8 = hn::Repartition<std::uint8_t, D16>;
using DI = hn::Repartition<std::int32_t, D16>;
using D = hn::Repartition<float, D16>;
constexpr std::size_t block = Int16Numbers::count;  // numbers of x with one scale
constexpr std::size_t lanes = hn::MaxLanes(D()), group_bytes = hn::MaxLanes(D8()), groups = block / 2 / group_bytes;
// Words of a block of x: 64 numbers of 16 bits, then their scale, and whether there is a second part. Blocks begin with
// a vector.
constexpr std::size_t scale_at = block / 2, second_at = scale_at + 1, block_words = scale_at + 8;
constexpr std::size_t line = 128;  // weights of a cache line
constexpr std::size_t max_in_registers = 4, max_m = 32;

// Integers of a block, in the order of Decoded, and their scale.
HWY_INLINE void store(const std::array<std::int16_t, block>& numbers, float scale, std::uint32_t* HWY_RESTRICT words) {
  auto* HWY_RESTRICT to = reinterpret_cast<std::int16_t*>(words);
  for (std::size_t group = 0; group < groups; ++group)
    for (const std::size_t odd : {1, 0})
      for (std::size_t half = 0; half < 2; ++half)
        for (std::size_t i = 0; i < 2 * lanes; ++i)
          *to++ = numbers[2 * (group * group_bytes + 8 * half + i / 8 * 16 + i % 8) + odd];
  std::memcpy(words + scale_at, &scale, sizeof scale);
}

void arrange(const void* x, std::size_t n, std::uint32_t* HWY_RESTRICT words) {
  const auto* from = static_cast<const std::byte*>(x);
  std::uint32_t* HWY_RESTRICT second = words + n / block * block_words;
  for (std::size_t i = 0; i < n; i += block, from += 2 * block, words += block_words, second += block_words) {
    const Int16Numbers numbers = to_int16(from);
    store(numbers.first, numbers.first_scale, words);
    store(numbers.second, numbers.second_scale, second);
    words[second_at] = numbers.second_scale != 0 ? 1 : 0;
  }
}

// Weights of a vector of bytes: of every 128 bits the odd ones of the lower half, those of the upper half, and the even
// ones, which is the order of Block.
class Decoded {
 public:
  HWY_INLINE Decoded(const Int16Codebook& codebook, const std::uint8_t* HWY_RESTRICT codes) {
    const D8 d8;
    const D16 d16;
    const auto lower = hn::LoadDup128(d8, codebook.lower.data()), upper = hn::LoadDup128(d8, codebook.upper.data());
    const auto bytes = hn::LoadU(d8, codes), low_bits = hn::Set(d8, 15), odd = hn::And(bytes, low_bits);
    const auto even = hn::And(hn::BitCast(d8, hn::ShiftRight<4>(hn::BitCast(d16, bytes))), low_bits);
    const auto odd0 = hn::TableLookupBytes(lower, odd), odd1 = hn::TableLookupBytes(upper, odd);
    const auto even0 = hn::TableLookupBytes(lower, even), even1 = hn::TableLookupBytes(upper, even);
    w0_ = hn::BitCast(d16, hn::InterleaveLower(d8, odd0, odd1));
    w1_ = hn::BitCast(d16, hn::InterleaveUpper(d8, odd0, odd1));
    w2_ = hn::BitCast(d16, hn::InterleaveLower(d8, even0, even1));
    w3_ = hn::BitCast(d16, hn::InterleaveUpper(d8, even0, even1));
  }

  // Sums of eight products with a group of a block of x, in units of the codebook.
  [[nodiscard]] HWY_INLINE hn::Vec<D> times(const std::uint32_t* HWY_RESTRICT words, std::size_t group) const {
    const DI di;
    const D d;
    const auto* const x = reinterpret_cast<const std::int16_t*>(words) + group * 2 * group_bytes;
    auto sum = hn::Zero(di), unused = hn::Zero(di);  // on x86, all sums are in the first
    sum = hn::ReorderWidenMulAccumulate(di, w0_, hn::Load(D16(), x), sum, unused);
    sum = hn::ReorderWidenMulAccumulate(di, w1_, hn::Load(D16(), x + 2 * lanes), sum, unused);
    sum = hn::ReorderWidenMulAccumulate(di, w2_, hn::Load(D16(), x + 4 * lanes), sum, unused);
    sum = hn::ReorderWidenMulAccumulate(di, w3_, hn::Load(D16(), x + 6 * lanes), sum, unused);
    return hn::Mul(hn::ConvertTo(d, sum), hn::Set(d, reinterpret_cast<const float*>(words)[scale_at]));
  }

 private:
  hn::Vec<D16> w0_, w1_, w2_, w3_;
};

enum class Part : std::uint8_t { first, second };

// Products with a part of up to four rows of x. Of second parts, few blocks count; with first ones, it returns whether
// there are any.
template <Part part, std::size_t rows, std::size_t m>
HWY_INLINE bool multiply_block(const CodeRows& weights, std::size_t first, const std::uint32_t* HWY_RESTRICT x,
                               std::size_t x_stride, float* HWY_RESTRICT sums, std::size_t sums_stride) {
  const D d;
  const Int16Codebook& codebook = weights.tables.int16_codebook;
  const std::size_t packed_stride = weights.packed_stride, absmax_stride = weights.absmax_stride;
  const std::uint8_t* HWY_RESTRICT packed = weights.packed + first * packed_stride;
  const float* HWY_RESTRICT absmax = weights.absmax + first * absmax_stride;
  hn::Vec<D> sum[rows][m];
  for (auto& row : sum)
    for (auto& v : row) v = hn::Zero(d);
  std::uint32_t has_second = 0;
  for (std::size_t left = weights.n; left > 0; left -= weights.blocksize, ++absmax)
    for (std::size_t i = 0; i < weights.blocksize; i += block, packed += block / 2, x += block_words) {
      if constexpr (part == Part::first)
        for (std::size_t j = 0; j < m; ++j) has_second |= x[j * x_stride + second_at];
      if constexpr (part == Part::second) {
        std::uint32_t scales = 0;
        for (std::size_t j = 0; j < m; ++j) scales |= x[j * x_stride + scale_at];
        if (scales == 0) continue;
      }
      for (std::size_t r = 0; r < rows; ++r) {
        const std::uint8_t* HWY_RESTRICT const codes = packed + r * packed_stride;
        if (part == Part::first && i % line == 0) prefetch_to_l2(codes + weights.ahead);
        const auto scale = hn::Set(d, absmax[r * absmax_stride]);
        for (std::size_t group = 0; group < groups; ++group) {
          const Decoded w(codebook, codes + group * group_bytes);
          for (std::size_t j = 0; j < m; ++j)
            sum[r][j] = hn::MulAdd(w.times(x + j * x_stride, group), scale, sum[r][j]);
        }
      }
    }
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t j = 0; j < m; ++j)
      sums[r * sums_stride + j] += hn::GetLane(hn::SumOfLanes(d, sum[r][j])) * codebook.unit;
  return has_second != 0;
}

template <Part part>
bool multiply_part(const CodeRows& weights, const std::uint32_t* x, std::size_t x_stride, std::size_t m, float* sums) {
  bool has_second = false;
  in_parts<max_in_registers>(m, [&](auto count, std::size_t i) HWY_ATTR {
    constexpr std::size_t max_rows = count() == 1 ? 4 : count() == 2 ? 2 : 1;  // sums and factors fit 16 registers
    in_groups<max_rows>(weights.rows, [&](auto rows, std::size_t row) HWY_ATTR {
      has_second |=
          multiply_block<part, rows(), count()>(weights, row, x + i * x_stride, x_stride, sums + row * m + i, m);
    });
  });
  return has_second;
}

void multiply(const CodeRows& weights, const std::uint32_t* x, std::size_t x_stride, std::size_t m, float* sums) {
  if (multiply_part<Part::first>(weights, x, x_stride, m, sums))
    multiply_part<Part::second>(weights, x + m * x_stride, x_stride, m, sums);
}

CodeKernel kernel() { return {{block_words, DType::bf16, arrange, 2}, max_m, block, block, multiply}; }

#else

CodeKernel kernel() { return {}; }

#endif

}  // namespace
}  // namespace nibble::matmul::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble::matmul {

HWY_EXPORT(kernel);

std::optional<CodeKernel> code_kernel_int16() {
  const CodeKernel found = HWY_DYNAMIC_DISPATCH(kernel)();
  return found.multiply == nullptr ? std::nullopt : std::optional(found);
}

}  // namespace nibble::matmul
#endif
