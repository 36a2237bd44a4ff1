// Products of few rows in fp32, compiled once per CPU target.
#include "quant/matmul/words/row_kernel.hpp"

#include "nibble/int8.hpp"
#include "quant/codecs/four_bit/four_bit.hpp"
#include "quant/matmul/counts.hpp"
#include "quant/simd/prefetch.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/matmul/words/row_kernel.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "quant/simd/byte_table16-inl.hpp"
#include "quant/simd/registers-inl.hpp"
#include "quant/simd/table16-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace nibble::matmul::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<float, 16>;
constexpr std::size_t lanes = hn::MaxLanes(D());

// A byte has two weights. Of 32 weights (AVX-512) or of every 8, the even ones come first, then the odd ones: so they
// need no interleaving.
using Half = hn::CappedTag<float, lanes == 16 ? 16 : 4>;
constexpr std::size_t half = hn::MaxLanes(Half());

void decode_four_bit(const FourBitTables& tables, const std::uint8_t* HWY_RESTRICT packed,
                     const float* HWY_RESTRICT absmax, std::size_t blocksize, std::size_t n, std::size_t ahead,
                     std::uint32_t* HWY_RESTRICT words) {
  const D d;
  float* HWY_RESTRICT out = reinterpret_cast<float*>(words);
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  const hn::RebindToSigned<D> di;
  const hn::Rebind<std::uint8_t, D> d8;
  const nibble::HWY_NAMESPACE::Table16<D> codebook(d, tables.codebook.data());
  for (std::size_t first = 0; first < n; first += blocksize, ++absmax) {
    HWY_ALIGN float room[16];
    prefetch_to_l2(packed + ahead);
    const nibble::HWY_NAMESPACE::Table16<D> value(d, codebook, *absmax, room);
    for (std::size_t i = 0; i < blocksize; i += 2 * lanes, packed += lanes, out += 2 * lanes) {
      const auto byte = hn::PromoteTo(di, hn::LoadU(d8, packed));
      hn::Store(value[hn::ShiftRight<4>(byte)], d, out);
      hn::Store(value.at_lower_bits(byte), d, out + lanes);
    }
  }
#else
  const nibble::HWY_NAMESPACE::ByteTable16<D> codebook(tables.codebook.data());
  for (std::size_t first = 0; first < n; first += blocksize, ++absmax) {
    prefetch_to_l2(packed + ahead);
    const auto scale = hn::Set(d, *absmax);
    for (std::size_t i = 0; i < blocksize; i += 32, packed += 16, out += 32)
      codebook.look_up_32(packed,
                          [&](std::size_t at, hn::Vec<D> v) HWY_ATTR { hn::Store(hn::Mul(v, scale), d, out + at); });
  }
#endif
}

void arrange_four_bit(const void* x, std::size_t n, std::uint32_t* HWY_RESTRICT words) {
  const Half d;
  const float* HWY_RESTRICT from = static_cast<const float*>(x);
  float* HWY_RESTRICT out = reinterpret_cast<float*>(words);
  for (std::size_t i = 0; i < n; i += 2 * half, from += 2 * half, out += 2 * half) {
    hn::Vec<Half> even, odd;
    hn::LoadInterleaved2(d, from, even, odd);
    hn::Store(even, d, out);
    hn::Store(odd, d, out + half);
  }
}

void restore(const float* HWY_RESTRICT arranged, std::size_t n, float* HWY_RESTRICT numbers) {
  const Half d;
  for (std::size_t i = 0; i < n; i += 2 * half)
    hn::StoreInterleaved2(hn::LoadU(d, arranged + i), hn::LoadU(d, arranged + i + half), d, numbers + i);
}

void decode_int8(const std::int8_t* HWY_RESTRICT codes, float absmax, std::size_t n, std::size_t ahead,
                 std::uint32_t* HWY_RESTRICT words) {
  const D d;
  const hn::RebindToSigned<D> di;
  const hn::Rebind<std::int8_t, D> d8;
  float* HWY_RESTRICT out = reinterpret_cast<float*>(words);
  const auto scale = hn::Set(d, absmax), unit = hn::Set(d, int8::inverse_127);
  for (std::size_t i = 0; i < n; i += lanes) {
    if (i % 32 == 0) prefetch_to_l2(codes + i + ahead);
    const auto code = hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, codes + i)));
    hn::Store(hn::Mul(hn::Mul(code, scale), unit), d, out + i);
  }
}

using nibble::HWY_NAMESPACE::has_32_registers;

// m rows of x at a time: with their sums, weights and one vector of x, they fill the registers.
constexpr std::size_t max_m = has_32_registers ? 6 : 2;

template <std::size_t rows, std::size_t m>
HWY_INLINE void multiply_block(const float* HWY_RESTRICT weights, std::size_t stride, const float* HWY_RESTRICT x,
                               std::size_t x_stride, std::size_t words, float* HWY_RESTRICT sums,
                               std::size_t sums_stride) {
  const D d;
  hn::Vec<D> sum[rows][m];
  for (auto& row : sum)
    for (auto& v : row) v = hn::Zero(d);
  for (std::size_t p = 0; p < words; p += lanes) {
    hn::Vec<D> w[rows];
    for (std::size_t r = 0; r < rows; ++r) w[r] = hn::Load(d, weights + r * stride + p);
    for (std::size_t i = 0; i < m; ++i) {
      const auto v = hn::Load(d, x + i * x_stride + p);
      for (std::size_t r = 0; r < rows; ++r) sum[r][i] = hn::MulAdd(w[r], v, sum[r][i]);
    }
  }
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t i = 0; i < m; ++i) sums[r * sums_stride + i] += hn::GetLane(hn::SumOfLanes(d, sum[r][i]));
}

void multiply_words(const std::uint32_t* weights, std::size_t stride, std::size_t rows, const std::uint32_t* x,
                    std::size_t x_stride, std::size_t m, std::size_t words, float* sums) {
  const auto* const w = reinterpret_cast<const float*>(weights);
  in_parts<max_m>(m, [&](auto count, std::size_t first) HWY_ATTR {
    const auto* const from = reinterpret_cast<const float*>(x) + first * x_stride;
    if (rows == RowKernel::max_rows)
      multiply_block<RowKernel::max_rows, count()>(w, stride, from, x_stride, words, sums + first, m);
    else
      for (std::size_t row = 0; row < rows; ++row)
        multiply_block<1, count()>(w + row * stride, stride, from, x_stride, words, sums + row * m + first, m);
  });
}

// With two vectors of columns each, these sums fill the registers: a weight and a number of x are then loaded for
// several products, and sums for as many as there are rows.
constexpr std::size_t added_vectors = 2, max_added_m = has_32_registers ? 12 : 6;
static_assert(32 % (added_vectors * lanes) == 0);

template <std::size_t m>
HWY_INLINE void add_block(const float* HWY_RESTRICT weights, std::size_t stride, std::size_t rows, std::size_t columns,
                          const float* HWY_RESTRICT x, std::size_t x_stride, float* HWY_RESTRICT sums,
                          std::size_t sums_stride) {
  const D d;
  for (std::size_t c = 0; c < columns; c += added_vectors * lanes) {
    hn::Vec<D> sum[m][added_vectors], w[added_vectors];
    for (std::size_t i = 0; i < m; ++i)
      for (std::size_t v = 0; v < added_vectors; ++v) sum[i][v] = hn::Load(d, sums + i * sums_stride + c + v * lanes);
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t v = 0; v < added_vectors; ++v) w[v] = hn::Load(d, weights + r * stride + c + v * lanes);
      for (std::size_t i = 0; i < m; ++i) {
        const auto factor = hn::Set(d, x[i * x_stride + r]);
        for (std::size_t v = 0; v < added_vectors; ++v) sum[i][v] = hn::MulAdd(w[v], factor, sum[i][v]);
      }
    }
    for (std::size_t i = 0; i < m; ++i)
      for (std::size_t v = 0; v < added_vectors; ++v) hn::Store(sum[i][v], d, sums + i * sums_stride + c + v * lanes);
  }
}

void add_rows(const float* weights, std::size_t stride, std::size_t rows, std::size_t columns, const float* x,
              std::size_t x_stride, std::size_t m, float* sums, std::size_t sums_stride) {
  in_parts<max_added_m>(m, [&](auto count, std::size_t first) HWY_ATTR {
    add_block<count()>(weights, stride, rows, columns, x + first * x_stride, x_stride, sums + first * sums_stride,
                       sums_stride);
  });
}

}  // namespace nibble::matmul::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble::matmul {

HWY_EXPORT(decode_four_bit);
HWY_EXPORT(decode_int8);
HWY_EXPORT(arrange_four_bit);
HWY_EXPORT(multiply_words);
HWY_EXPORT(restore);
HWY_EXPORT(add_rows);

RowKernel row_kernel_f32() {
  const RowDecoder decoder{HWY_DYNAMIC_DISPATCH(decode_four_bit), HWY_DYNAMIC_DISPATCH(decode_int8),
                           HWY_DYNAMIC_DISPATCH(arrange_four_bit)};
  return {1, decoder, HWY_DYNAMIC_DISPATCH(multiply_words)};
}

void restore_four_bit(const float* arranged, std::size_t n, float* numbers) {
  HWY_DYNAMIC_DISPATCH(restore)(arranged, n, numbers);
}

void add_rows(const float* weights, std::size_t stride, std::size_t rows, std::size_t columns, const float* x,
              std::size_t x_stride, std::size_t m, float* sums, std::size_t sums_stride) {
  HWY_DYNAMIC_DISPATCH(add_rows)(weights, stride, rows, columns, x, x_stride, m, sums, sums_stride);
}

}  // namespace nibble::matmul
#endif
