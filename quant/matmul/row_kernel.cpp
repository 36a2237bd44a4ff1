// Products of few rows in fp32, compiled once per CPU target.
#include "quant/matmul/row_kernel.hpp"

#include "nibble/int8.hpp"
#include "quant/codecs/four_bit/four_bit.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/matmul/row_kernel.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "quant/simd/table16-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace nibble::matmul::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using nibble::HWY_NAMESPACE::Table16;
using D = hn::CappedTag<float, 16>;
constexpr std::size_t lanes = hn::MaxLanes(D());

// A byte has two weights. The even ones of two vectors come first, then the odd ones: so they need no interleaving.
void decode_four_bit(const FourBitTables& tables, const std::uint8_t* HWY_RESTRICT packed,
                     const float* HWY_RESTRICT absmax, std::size_t blocksize, std::size_t n, std::size_t ahead,
                     std::uint32_t* HWY_RESTRICT words) {
  const D d;
  const hn::RebindToSigned<D> di;
  const hn::Rebind<std::uint8_t, D> d8;
  const Table16<D> codebook(d, tables.codebook.data());
  float* HWY_RESTRICT out = reinterpret_cast<float*>(words);
  for (std::size_t first = 0; first < n; first += blocksize, ++absmax) {
    HWY_ALIGN float room[16];
    hwy::Prefetch(packed + ahead);
    const Table16<D> value(d, codebook, *absmax, room);
    for (std::size_t i = 0; i < blocksize; i += 2 * lanes, packed += lanes, out += 2 * lanes) {
      const auto byte = hn::PromoteTo(di, hn::LoadU(d8, packed));
      hn::Store(value[hn::ShiftRight<4>(byte)], d, out);
      hn::Store(value.at_lower_bits(byte), d, out + lanes);
    }
  }
}

void arrange_four_bit(const float* HWY_RESTRICT x, std::size_t n, std::uint32_t* HWY_RESTRICT words) {
  const D d;
  float* HWY_RESTRICT out = reinterpret_cast<float*>(words);
  for (std::size_t i = 0; i < n; i += 2 * lanes, x += 2 * lanes, out += 2 * lanes) {
    hn::Vec<D> even, odd;
    hn::LoadInterleaved2(d, x, even, odd);
    hn::Store(even, d, out);
    hn::Store(odd, d, out + lanes);
  }
}

void restore(const float* HWY_RESTRICT arranged, std::size_t n, float* HWY_RESTRICT numbers) {
  const D d;
  for (std::size_t i = 0; i < n; i += 2 * lanes)
    hn::StoreInterleaved2(hn::LoadU(d, arranged + i), hn::LoadU(d, arranged + i + lanes), d, numbers + i);
}

void decode_int8(const std::int8_t* HWY_RESTRICT codes, float absmax, std::size_t n, std::size_t ahead,
                 std::uint32_t* HWY_RESTRICT words) {
  const D d;
  const hn::RebindToSigned<D> di;
  const hn::Rebind<std::int8_t, D> d8;
  float* HWY_RESTRICT out = reinterpret_cast<float*>(words);
  const auto scale = hn::Set(d, absmax), unit = hn::Set(d, int8::inverse_127);
  for (std::size_t i = 0; i < n; i += lanes) {
    if (i % 32 == 0) hwy::Prefetch(codes + i + ahead);
    const auto code = hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, codes + i)));
    hn::Store(hn::Mul(hn::Mul(code, scale), unit), d, out + i);
  }
}

// m rows of x at a time: with their sums, weights and one vector of x, they fill the registers.
constexpr std::size_t max_m = HWY_TARGET <= HWY_AVX3 || HWY_TARGET == HWY_NEON ? 6 : 2;

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

template <std::size_t rows, std::size_t m = max_m>
HWY_INLINE void multiply_as(std::size_t count, const float* weights, std::size_t stride, const float* x,
                            std::size_t x_stride, std::size_t words, float* sums, std::size_t sums_stride) {
  if (count == m) return multiply_block<rows, m>(weights, stride, x, x_stride, words, sums, sums_stride);
  if constexpr (m > 1) multiply_as<rows, m - 1>(count, weights, stride, x, x_stride, words, sums, sums_stride);
}

void multiply_words(const std::uint32_t* weights, std::size_t stride, std::size_t rows, const std::uint32_t* x,
                    std::size_t x_stride, std::size_t m, std::size_t words, float* sums) {
  const auto* const w = reinterpret_cast<const float*>(weights);
  const std::size_t parts = (m + max_m - 1) / max_m;
  for (std::size_t part = 0, first = 0; part < parts; ++part) {
    const std::size_t end = m * (part + 1) / parts, count = end - first;
    const auto* const from = reinterpret_cast<const float*>(x) + first * x_stride;
    if (rows == RowKernel::max_rows)
      multiply_as<RowKernel::max_rows>(count, w, stride, from, x_stride, words, sums + first, m);
    else
      for (std::size_t row = 0; row < rows; ++row)
        multiply_as<1>(count, w + row * stride, stride, from, x_stride, words, sums + row * m + first, m);
    first = end;
  }
}

template <std::size_t rows>
HWY_INLINE void add_block(const float* HWY_RESTRICT weights, std::size_t stride, std::size_t columns,
                          const float* HWY_RESTRICT x, std::size_t x_stride, std::size_t m, float* HWY_RESTRICT sums,
                          std::size_t sums_stride) {
  const D d;
  for (std::size_t c = 0; c < columns; c += lanes) {
    hn::Vec<D> w[rows];
    for (std::size_t r = 0; r < rows; ++r) w[r] = hn::Load(d, weights + r * stride + c);
    for (std::size_t i = 0; i < m; ++i) {
      auto sum = hn::Load(d, sums + i * sums_stride + c);
      for (std::size_t r = 0; r < rows; ++r) sum = hn::MulAdd(w[r], hn::Set(d, x[i * x_stride + r]), sum);
      hn::Store(sum, d, sums + i * sums_stride + c);
    }
  }
}

void add_rows(const float* weights, std::size_t stride, std::size_t rows, std::size_t columns, const float* x,
              std::size_t x_stride, std::size_t m, float* sums, std::size_t sums_stride) {
  if (rows == max_added_rows)
    return add_block<max_added_rows>(weights, stride, columns, x, x_stride, m, sums, sums_stride);
  for (std::size_t row = 0; row < rows; ++row)
    add_block<1>(weights + row * stride, stride, columns, x + row, x_stride, m, sums, sums_stride);
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
  return {1, HWY_DYNAMIC_DISPATCH(decode_four_bit), HWY_DYNAMIC_DISPATCH(decode_int8),
          HWY_DYNAMIC_DISPATCH(arrange_four_bit), HWY_DYNAMIC_DISPATCH(multiply_words)};
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
