// Products of few rows with int8 codes in fp32, compiled once per CPU target.
#include "quant/matmul/codes/int8_kernel.hpp"

#include <cmath>
#include <limits>

#include "quant/matmul/counts.hpp"
#include "quant/matmul/words/row_kernel.hpp"
#include "quant/simd/prefetch.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/matmul/codes/int8_kernel.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "quant/simd/registers-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace nibble::matmul::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<float, 16>;
constexpr std::size_t lanes = hn::MaxLanes(D());
constexpr std::size_t step = 32;  // weights between two requests to memory
static_assert(step % (2 * lanes) == 0);

// Their sums fill half of the registers.
using nibble::HWY_NAMESPACE::has_32_registers;
constexpr std::size_t max_rows = 4, max_m = has_32_registers ? 4 : 2;

template <std::size_t rows, std::size_t m>
HWY_INLINE void multiply_block(const Int8CodeRows& weights, std::size_t first, const float* HWY_RESTRICT x,
                               std::size_t x_stride, float* HWY_RESTRICT sums, std::size_t sums_stride) {
  const D d;
  const hn::RebindToSigned<D> di;
  const hn::Rebind<std::int8_t, D> d8;
  // Two for each row, because one would be waited for.
  constexpr std::size_t chains = m == 1 ? 2 : 1;
  const std::int8_t* HWY_RESTRICT codes = weights.codes + first * weights.stride;
  hn::Vec<D> sum[rows][m][chains];
  for (auto& row : sum)
    for (auto& of_x : row)
      for (auto& v : of_x) v = hn::Zero(d);
  for (std::size_t p = 0; p < weights.n; p += step) {
    for (std::size_t r = 0; r < rows; ++r) prefetch_to_l2(codes + r * weights.stride + p + weights.ahead);
    for (std::size_t v = 0; v < step / lanes; ++v)
      for (std::size_t r = 0; r < rows; ++r) {
        const std::size_t at = p + v * lanes;
        const auto w = hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, codes + r * weights.stride + at)));
        for (std::size_t i = 0; i < m; ++i) {
          auto& to = sum[r][i][v % chains];
          to = hn::MulAdd(w, hn::Load(d, x + i * x_stride + at), to);
        }
      }
  }
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t i = 0; i < m; ++i) {
      if constexpr (chains == 2) sum[r][i][0] = hn::Add(sum[r][i][0], sum[r][i][1]);
      sums[r * sums_stride + i] += hn::GetLane(hn::SumOfLanes(d, sum[r][i][0]));
    }
}

void multiply_codes(const Int8CodeRows& weights, const float* x, std::size_t x_stride, std::size_t m, float* sums) {
  in_parts<max_m>(m, [&](auto count, std::size_t i) HWY_ATTR {
    in_groups<max_rows>(weights.rows, [&](auto rows, std::size_t row) HWY_ATTR {
      multiply_block<rows(), count()>(weights, row, x + i * x_stride, x_stride, sums + row * m + i, m);
    });
  });
}

// With so many vectors of columns, a factor is loaded once for several products. Their sums fit the registers.
constexpr std::size_t added_vectors = lanes == 16 ? 2 : 4;
static_assert(step % (added_vectors * lanes) == 0);

template <std::size_t rows, std::size_t m>
HWY_INLINE void add_block(const Int8CodeRows& weights, std::size_t first, const float* HWY_RESTRICT factors,
                          std::size_t factors_stride, float* HWY_RESTRICT sums, std::size_t sums_stride) {
  const D d;
  const hn::RebindToSigned<D> di;
  const hn::Rebind<std::int8_t, D> d8;
  for (std::size_t c = 0; c < weights.n; c += added_vectors * lanes, sums += added_vectors * lanes) {
    const std::int8_t* HWY_RESTRICT codes = weights.codes + first * weights.stride + c;
    hn::Vec<D> sum[m][added_vectors];
    for (std::size_t i = 0; i < m; ++i)
      for (std::size_t v = 0; v < added_vectors; ++v) sum[i][v] = hn::LoadU(d, sums + i * sums_stride + v * lanes);
    for (std::size_t r = 0; r < rows; ++r, codes += weights.stride) {
      prefetch_to_l2(codes + weights.ahead);
      for (std::size_t v = 0; v < added_vectors; ++v) {
        const auto w = hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, codes + v * lanes)));
        for (std::size_t i = 0; i < m; ++i)
          sum[i][v] = hn::MulAdd(w, hn::Set(d, factors[i * factors_stride + first + r]), sum[i][v]);
      }
    }
    for (std::size_t i = 0; i < m; ++i)
      for (std::size_t v = 0; v < added_vectors; ++v) hn::StoreU(sum[i][v], d, sums + i * sums_stride + v * lanes);
  }
}

void add_codes(const Int8CodeRows& weights, const float* factors, std::size_t factors_stride, std::size_t m,
               float* sums, std::size_t sums_stride) {
  in_parts<max_m>(m, [&](auto count, std::size_t i) HWY_ATTR {
    in_groups<max_added_rows>(weights.rows, [&](auto rows, std::size_t row) HWY_ATTR {
      add_block<rows(), count()>(weights, row, factors + i * factors_stride, factors_stride, sums + i * sums_stride,
                                 sums_stride);
    });
  });
}

}  // namespace
}  // namespace nibble::matmul::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble::matmul {

HWY_EXPORT(multiply_codes);
HWY_EXPORT(add_codes);

float factor_of_int8_codes(float value) {
  const float magnitude = std::abs(value);
  return magnitude == 0 || (magnitude >= 1e-30f && magnitude <= 1e30f) ? value
                                                                       : std::numeric_limits<float>::quiet_NaN();
}

void multiply_int8_codes(const Int8CodeRows& weights, const float* x, std::size_t x_stride, std::size_t m,
                         float* sums) {
  HWY_DYNAMIC_DISPATCH(multiply_codes)(weights, x, x_stride, m, sums);
}

void add_int8_code_rows(const Int8CodeRows& weights, const float* factors, std::size_t factors_stride, std::size_t m,
                        float* sums, std::size_t sums_stride) {
  HWY_DYNAMIC_DISPATCH(add_codes)(weights, factors, factors_stride, m, sums, sums_stride);
}

}  // namespace nibble::matmul
#endif
