// Sums of rows of codes times numbers of x in bf16, in integers of 16 bits: for x86 processors without AVX-512, where
// that takes half as many instructions as in fp32. Compiled once per CPU target.
//
// Codes of two rows are interleaved byte by byte, and then the two bytes of their values, so that a word has the values
// of both rows for one column, and one instruction multiplies both and adds them up.
#include <bit>
#include <cassert>

#include "quant/codecs/four_bit/four_bit.hpp"
#include "quant/matmul/codes/code_kernel.hpp"
#include "quant/matmul/codes/int16_factors.hpp"
#include "quant/simd/prefetch.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/matmul/codes/add_codes_int16.cpp"
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
constexpr std::size_t lanes = hn::MaxLanes(D()), columns = 2 * hn::MaxLanes(D8());
static_assert(Int16Factors::min_blocksize % columns == 0);

// Sums of `columns` columns of a block. In each of their 128 bits, even_[i] and odd_[i] have those of the even and of
// the odd columns of bytes 4 i to 4 i + 3 of the same 128 bits of codes.
class Sums {
 public:
  HWY_INLINE Sums() {
    for (std::size_t i = 0; i < vectors; ++i) even_[i] = odd_[i] = hn::Zero(DI());
  }

  // `codes` has bytes of both rows in turns: the lower 8 of each 128 bits, or the upper 8 if `half` is 1.
  HWY_INLINE void add(const Int16Codebook& codebook, hn::Vec<D8> codes, std::size_t half, hn::Vec<D16> x) {
    const D8 d8;
    const auto low_bits = hn::Set(d8, 15);
    const auto even = hn::BitCast(d8, hn::ShiftRight<4>(hn::BitCast(D16(), codes)));
    add_products(codebook, hn::And(even, low_bits), x, even_ + 2 * half);
    add_products(codebook, hn::And(codes, low_bits), x, odd_ + 2 * half);
  }

  // Adds them, times `unit`, to sums in the order of RowDecoder::arrange_four_bit().
  HWY_INLINE void add_to(float* HWY_RESTRICT sums, float unit) const {
    const D d;
    const auto of_one = hn::Set(d, unit);
    const auto add = [&](hn::Vec<D> v, float* HWY_RESTRICT to)
                         HWY_ATTR { hn::Store(hn::MulAdd(v, of_one, hn::Load(d, to)), d, to); };
    for (std::size_t i = 0; i < vectors; ++i) {
      const auto even = hn::ConvertTo(d, even_[i]), odd = hn::ConvertTo(d, odd_[i]);
      if constexpr (lanes == 8) {
        add(hn::ConcatLowerLower(d, odd, even), sums + i * lanes);
        add(hn::ConcatUpperUpper(d, odd, even), sums + (vectors + i) * lanes);
      } else {
        add(even, sums + 2 * i * lanes);
        add(odd, sums + (2 * i + 1) * lanes);
      }
    }
  }

 private:
  static constexpr std::size_t vectors = columns / 2 / lanes;

  static HWY_INLINE void add_products(const Int16Codebook& codebook, hn::Vec<D8> codes, hn::Vec<D16> x,
                                      hn::Vec<DI>* HWY_RESTRICT to) {
    const DI di;
    const D8 d8;
    const auto lower = hn::TableLookupBytes(hn::LoadDup128(d8, codebook.lower.data()), codes);
    const auto upper = hn::TableLookupBytes(hn::LoadDup128(d8, codebook.upper.data()), codes);
    auto unused = hn::Zero(di);  // on x86, all sums are in the first
    to[0] =
        hn::ReorderWidenMulAccumulate(di, hn::BitCast(D16(), hn::InterleaveLower(d8, lower, upper)), x, to[0], unused);
    to[1] =
        hn::ReorderWidenMulAccumulate(di, hn::BitCast(D16(), hn::InterleaveUpper(d8, lower, upper)), x, to[1], unused);
  }

  hn::Vec<DI> even_[vectors], odd_[vectors];
};

void add(const CodeRows& weights, const Int16Factors& factors, float* HWY_RESTRICT sums) {
  const D8 d8;
  const int log2_blocksize = std::countr_zero(weights.blocksize);
  for (std::size_t column = 0; column < weights.n; column += columns, sums += columns) {
    const std::size_t block = column >> log2_blocksize;
    const std::uint8_t* HWY_RESTRICT from = weights.packed + column / 2;
    const auto next_row = [&]() HWY_ATTR {
      prefetch_to_l2(from + weights.ahead);
      const auto codes = hn::LoadU(d8, from);
      from += weights.packed_stride;
      return codes;
    };
    Sums of_columns;
    for (const auto& of_pair : factors.of_pair) {
      const auto first = next_row(), second = next_row();
      const auto x = hn::BitCast(D16(), hn::Set(hn::RebindToUnsigned<DI>(), of_pair[block]));
      of_columns.add(weights.tables.int16_codebook, hn::InterleaveLower(d8, first, second), 0, x);
      of_columns.add(weights.tables.int16_codebook, hn::InterleaveUpper(d8, first, second), 1, x);
    }
    of_columns.add_to(sums, factors.unit[block]);
  }
}

bool add_integers(const CodeRows& weights, const float* x, float* sums) {
  assert(weights.n <= max_columns_of_added_integers && weights.n % weights.blocksize == 0);
  if (weights.rows != Int16Factors::rows || weights.blocksize < Int16Factors::min_blocksize) return false;
  Int16Factors factors;
  if (!make_int16_factors(weights, x, factors)) return false;
  add(weights, factors, sums);
  return true;
}

AddIntegers kernel() { return add_integers; }

#else

AddIntegers kernel() { return nullptr; }

#endif

}  // namespace
}  // namespace nibble::matmul::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble::matmul {

HWY_EXPORT(kernel);

AddIntegers add_code_rows_int16() { return HWY_DYNAMIC_DISPATCH(kernel)(); }

}  // namespace nibble::matmul
#endif
