// Products of few rows in bf16 with codes, in integers of 16 bits: for x86 processors without AVX-512, where a lookup
// of two bytes and a product of pairs take half as many instructions as those of fp32. Compiled once per CPU target.
#include <cmath>
#include <limits>

#include "quant/codecs/four_bit/four_bit.hpp"
#include "quant/matmul/code_kernel.hpp"
#include "quant/matmul/counts.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/matmul/code_kernel_int16.cpp"
#include <hwy/cache_control.h>
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
constexpr std::size_t block = 64;  // numbers of x with one scale
constexpr std::size_t lanes = hn::MaxLanes(D()), group_bytes = hn::MaxLanes(D8()), groups = block / 2 / group_bytes;
constexpr std::size_t scale_at = block / 2, block_words = scale_at + 8;  // words; the scale has a vector for itself
constexpr std::size_t line = 128;                                        // weights of a cache line
constexpr std::size_t max_in_registers = 4, max_m = 32;

// Numbers of x times 2^shift, below 2^15: bf16 has 8 bits, so those that are at least 2^-7 of the largest number of a
// block are exact. Then the scale, 2^-shift, which is NaN if a number is not finite.
void arrange(const void* x, std::size_t n, std::uint32_t* HWY_RESTRICT words) {
  const D16 d16;
  const DI di;
  const D d;
  const auto* from = static_cast<const std::uint16_t*>(x);
  for (std::size_t i = 0; i < n; i += block, from += block, words += block_words) {
    auto magnitude = hn::Zero(d16);
    for (std::size_t at = 0; at < block; at += 2 * lanes)
      magnitude = hn::Max(magnitude, hn::And(hn::BitCast(d16, hn::LoadU(hn::RebindToUnsigned<D16>(), from + at)),
                                             hn::Set(d16, 0x7FFF)));
    const int exponent = hn::GetLane(hn::MaxOfLanes(d16, magnitude)) >> 7;  // biased
    const int shift = 14 + 127 - exponent;
    // 2^shift may be too large for a number.
    const auto factor = hn::Set(d, std::ldexp(1.0f, shift / 2)),
               other = hn::Set(d, std::ldexp(1.0f, shift - shift / 2));
    // The even or odd numbers of a vector of pairs.
    const auto scaled = [&](std::size_t pair, bool odd) HWY_ATTR {
      const auto pairs = hn::BitCast(di, hn::LoadU(d16, reinterpret_cast<const std::int16_t*>(from) + 2 * pair));
      const auto number = odd ? hn::And(pairs, hn::Set(di, ~0xFFFF)) : hn::ShiftLeft<16>(pairs);
      return hn::NearestInt(hn::Mul(hn::Mul(hn::BitCast(d, number), factor), other));
    };
    auto* HWY_RESTRICT out = reinterpret_cast<std::int16_t*>(words);
    for (std::size_t group = 0; group < groups; ++group)
      for (const bool odd : {true, false})
        for (std::size_t half = 0; half < 2; ++half, out += 2 * lanes) {
          // The bytes that InterleaveLower() or InterleaveUpper() takes from each 128 bits of codes.
          const std::size_t first = group * group_bytes + 8 * half;
          const std::size_t second = first + (lanes == 8 ? 16 : 4);
          const auto a = scaled(first, odd), b = scaled(second, odd);
          // Each 128 bits of the result are from the same 128 bits of both arguments.
          if constexpr (lanes == 8)
            hn::Store(hn::ReorderDemote2To(d16, hn::ConcatLowerLower(di, b, a), hn::ConcatUpperUpper(di, b, a)), d16,
                      out);
          else
            hn::Store(hn::ReorderDemote2To(d16, a, b), d16, out);
        }
    const float scale = exponent == 255 ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0f, -shift);
    hn::Store(hn::Set(d, scale), d, reinterpret_cast<float*>(words + scale_at));
  }
}

struct Codebook {
  hn::Vec<D8> lower, upper;

  explicit Codebook(const Int16Codebook& codebook)
      : lower(hn::LoadDup128(D8(), codebook.lower.data())), upper(hn::LoadDup128(D8(), codebook.upper.data())) {}
};

template <std::size_t rows, std::size_t m>
HWY_INLINE void multiply_block(const CodeRows& weights, std::size_t first, const std::uint32_t* HWY_RESTRICT x,
                               std::size_t x_stride, float* HWY_RESTRICT sums, std::size_t sums_stride) {
  const D8 d8;
  const D16 d16;
  const DI di;
  const D d;
  const Codebook codebook(weights.tables.int16_codebook);
  const std::size_t packed_stride = weights.packed_stride, absmax_stride = weights.absmax_stride;
  const std::uint8_t* HWY_RESTRICT packed = weights.packed + first * packed_stride;
  const float* HWY_RESTRICT absmax = weights.absmax + first * absmax_stride;
  hn::Vec<D> sum[rows][m];
  for (auto& row : sum)
    for (auto& v : row) v = hn::Zero(d);
  for (std::size_t left = weights.n; left > 0; left -= weights.blocksize, ++absmax)
    for (std::size_t i = 0; i < weights.blocksize; i += block, packed += block / 2, x += block_words)
      for (std::size_t r = 0; r < rows; ++r) {
        const std::uint8_t* HWY_RESTRICT const codes = packed + r * packed_stride;
        if (i % line == 0) hwy::Prefetch(codes + weights.ahead);
        const auto scale = hn::Set(d, absmax[r * absmax_stride]);
        for (std::size_t group = 0; group < groups; ++group) {
          const auto bytes = hn::LoadU(d8, codes + group * group_bytes), low_bits = hn::Set(d8, 15);
          const auto odd = hn::And(bytes, low_bits);
          const auto even = hn::And(hn::BitCast(d8, hn::ShiftRight<4>(hn::BitCast(d16, bytes))), low_bits);
          const auto odd0 = hn::TableLookupBytes(codebook.lower, odd), odd1 = hn::TableLookupBytes(codebook.upper, odd);
          const auto even0 = hn::TableLookupBytes(codebook.lower, even);
          const auto even1 = hn::TableLookupBytes(codebook.upper, even);
          const auto w0 = hn::BitCast(d16, hn::InterleaveLower(d8, odd0, odd1));
          const auto w1 = hn::BitCast(d16, hn::InterleaveUpper(d8, odd0, odd1));
          const auto w2 = hn::BitCast(d16, hn::InterleaveLower(d8, even0, even1));
          const auto w3 = hn::BitCast(d16, hn::InterleaveUpper(d8, even0, even1));
          for (std::size_t j = 0; j < m; ++j) {
            const std::uint32_t* HWY_RESTRICT const from = x + j * x_stride;
            const auto* const numbers = reinterpret_cast<const std::int16_t*>(from) + group * 2 * group_bytes;
            auto all = hn::Zero(di), unused = hn::Zero(di);  // on x86, all sums are in the first
            const auto add = [&](auto w, std::size_t v) HWY_ATTR {
              all = hn::ReorderWidenMulAccumulate(di, w, hn::Load(d16, numbers + v * 2 * lanes), all, unused);
            };
            add(w0, 0);
            add(w1, 1);
            add(w2, 2);
            add(w3, 3);
            const auto scaled =
                hn::Mul(hn::ConvertTo(d, all), hn::Load(d, reinterpret_cast<const float*>(from + scale_at)));
            sum[r][j] = hn::MulAdd(scaled, scale, sum[r][j]);
          }
        }
      }
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t j = 0; j < m; ++j)
      sums[r * sums_stride + j] += hn::GetLane(hn::SumOfLanes(d, sum[r][j])) * weights.tables.int16_codebook.unit;
}

void multiply(const CodeRows& weights, const std::uint32_t* x, std::size_t x_stride, std::size_t m, float* sums) {
  in_parts<max_in_registers>(m, [&](auto count, std::size_t i) HWY_ATTR {
    const std::uint32_t* const from = x + i * x_stride;
    constexpr std::size_t rows = count() == 1 ? 4 : count() == 2 ? 2 : 1;  // their sums and factors fit 16 registers
    std::size_t row = 0;
    for (; row + rows <= weights.rows; row += rows)
      multiply_block<rows, count()>(weights, row, from, x_stride, sums + row * m + i, m);
    for (; row < weights.rows; ++row) multiply_block<1, count()>(weights, row, from, x_stride, sums + row * m + i, m);
  });
}

CodeKernel kernel() { return {{block_words, DType::bf16, arrange}, max_m, block, multiply}; }

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
