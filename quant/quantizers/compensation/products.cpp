// Compiled once per CPU target.
#include "quant/quantizers/compensation/products.hpp"

#include "quant/matmul/counts.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/quantizers/compensation/products.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "quant/simd/lanes-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace nibble::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// The sums of so many rows fill the registers, with the vectors of the panel and one of `a`.
template <class T> constexpr std::size_t max_rows() {
  constexpr std::size_t vectors = panel_width<T> / hn::MaxLanes(hn::CappedTag<T, panel_width<T>>());
  return vectors == 1 ? 8 : vectors == 2 || HWY_TARGET == HWY_NEON ? 6 : vectors == 4 ? 2 : 1;
}

template <std::size_t rows, class T>
HWY_INLINE void subtract_rows(const StridedMatrix<T>& a, std::size_t depth, const T* HWY_RESTRICT panel,
                              T* HWY_RESTRICT sums, std::size_t sums_stride) {
  const hn::CappedTag<T, panel_width<T>> d;
  constexpr std::size_t lanes = hn::MaxLanes(hn::CappedTag<T, panel_width<T>>());
  constexpr std::size_t vectors = panel_width<T> / lanes;
  hn::Vec<decltype(d)> sum[rows][vectors];
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t v = 0; v < vectors; ++v) sum[r][v] = hn::LoadU(d, sums + r * sums_stride + v * lanes);
  const T* from = a.numbers;
  for (std::size_t p = 0; p < depth; ++p, from += a.depth_stride, panel += panel_width<T>) {
    hn::Vec<decltype(d)> b[vectors];
    for (std::size_t v = 0; v < vectors; ++v) b[v] = hn::LoadU(d, panel + v * lanes);
    for (std::size_t r = 0; r < rows; ++r) {
      const auto x = hn::Set(d, from[r * a.row_stride]);
#if HWY_NATIVE_FMA
      for (std::size_t v = 0; v < vectors; ++v) sum[r][v] = hn::NegMulAdd(x, b[v], sum[r][v]);
#else
      for (std::size_t v = 0; v < vectors; ++v) sum[r][v] = fused(d, hn::Neg(x), b[v], sum[r][v]);
#endif
    }
  }
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t v = 0; v < vectors; ++v) hn::StoreU(sum[r][v], d, sums + r * sums_stride + v * lanes);
}

template <class T>
HWY_INLINE void subtract(const StridedMatrix<T>& a, std::size_t rows, std::size_t depth, const T* HWY_RESTRICT panel,
                         T* HWY_RESTRICT sums, std::size_t sums_stride) {
  matmul::in_parts<max_rows<T>()>(rows, [&](auto count, std::size_t first) HWY_ATTR {
    subtract_rows<count()>(StridedMatrix<T>{a.numbers + first * a.row_stride, a.row_stride, a.depth_stride}, depth,
                           panel, sums + first * sums_stride, sums_stride);
  });
}

void subtract_f32(const StridedMatrix<float>& a, std::size_t rows, std::size_t depth, const float* HWY_RESTRICT panel,
                  float* HWY_RESTRICT sums, std::size_t sums_stride) {
  subtract(a, rows, depth, panel, sums, sums_stride);
}

void subtract_f64(const StridedMatrix<double>& a, std::size_t rows, std::size_t depth, const double* HWY_RESTRICT panel,
                  double* HWY_RESTRICT sums, std::size_t sums_stride) {
  subtract(a, rows, depth, panel, sums, sums_stride);
}

}  // namespace
}  // namespace nibble::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble {

HWY_EXPORT(subtract_f32);
HWY_EXPORT(subtract_f64);

void subtract_products(const StridedMatrix<float>& a, std::size_t rows, std::size_t depth, const float* panel,
                       float* sums, std::size_t sums_stride) {
  HWY_DYNAMIC_DISPATCH(subtract_f32)(a, rows, depth, panel, sums, sums_stride);
}

void subtract_products(const StridedMatrix<double>& a, std::size_t rows, std::size_t depth, const double* panel,
                       double* sums, std::size_t sums_stride) {
  HWY_DYNAMIC_DISPATCH(subtract_f64)(a, rows, depth, panel, sums, sums_stride);
}

}  // namespace nibble
#endif
