// Compiled once per CPU target.
#include "quant/quantizers/compensation/row_group.hpp"

#include <algorithm>
#include <cmath>

#include "nibble/int8.hpp"
#include "quant/quantizers/compensation/input_factor.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/quantizers/compensation/row_group.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "quant/simd/lanes-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace nibble::row_group::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using nibble::HWY_NAMESPACE::D;
using nibble::HWY_NAMESPACE::DI;
using nibble::HWY_NAMESPACE::fused;
using nibble::HWY_NAMESPACE::V;
using nibble::HWY_NAMESPACE::vector_lanes;
using VI = hn::Vec<DI>;

// As an integer maximum of the bits, which does not lose NaN.
void find_largest(const float* HWY_RESTRICT weights, std::size_t columns, float* HWY_RESTRICT largest) {
  const D d;
  const DI di;
  for (std::size_t r = 0; r < rows; r += vector_lanes) {
    VI most = hn::Zero(di);
    for (std::size_t c = 0; c < columns; ++c)
      most = hn::Max(most, hn::And(hn::BitCast(di, hn::LoadU(d, weights + c * rows + r)), hn::Set(di, 0x7FFFFFFF)));
    hn::StoreU(hn::BitCast(d, most), d, largest + r);
  }
}

// The value of the nearest code.
HWY_INLINE V nearest(const FourBitGrid& grid, V v) {
  const D d;
  V value = hn::Set(d, grid.value[0]);
  for (std::size_t m = 0; m < 15; ++m)
    value = hn::IfThenElse(hn::Gt(v, hn::Set(d, grid.midpoint[m])), hn::Set(d, grid.value[m + 1]), value);
  return value;
}

// A and B of a vector of rows, with weights and scales relative to the largest magnitude.
struct SearchSums {
  V product, square;
};

HWY_INLINE SearchSums sum(const FourBitGrid& grid, const float* HWY_RESTRICT weights, std::size_t columns,
                          const float* HWY_RESTRICT importance, V inverse_largest, V inverse) {
  const D d;
  SearchSums sums{hn::Zero(d), hn::Zero(d)};
  for (std::size_t c = 0; c < columns; ++c) {
    const V w = hn::Mul(hn::LoadU(d, weights + c * rows), inverse_largest);
    const V value = nearest(grid, hn::Mul(w, inverse)), weighted = hn::Mul(hn::Set(d, importance[c]), value);
    sums.product = hn::Add(sums.product, hn::Mul(weighted, w));
    sums.square = hn::Add(sums.square, hn::Mul(weighted, value));
  }
  return sums;
}

// One over a scale, and 0 where that is 0: all codes are those of 0 then.
HWY_INLINE V inverse_of(V scale) {
  const D d;
  const V zero = hn::Zero(d);
  return hn::IfThenElse(hn::Eq(scale, zero), zero, hn::Div(hn::Set(d, 1.0f), scale));
}

void search(const FourBitGrid& grid, const float* HWY_RESTRICT weights, std::size_t columns,
            const float* HWY_RESTRICT importance, const float* HWY_RESTRICT largest, const float* HWY_RESTRICT ratios,
            std::size_t count, float* HWY_RESTRICT absmax) {
  const D d;
  for (std::size_t r = 0; r < rows; r += vector_lanes) {
    const V magnitude = hn::LoadU(d, largest + r);
    const auto is_searched = hn::And(hn::Ge(magnitude, hn::Set(d, 1e-30f)), hn::Le(magnitude, hn::Set(d, 1e30f)));
    const V inverse_largest = inverse_of(hn::IfThenElse(is_searched, magnitude, hn::Set(d, 1.0f)));
    V best = hn::Zero(d), scale = hn::Set(d, 1.0f);
    const auto consider = [&](V inverse) HWY_ATTR {
      const SearchSums sums = sum(grid, weights + r, columns, importance, inverse_largest, inverse);
      const V gain = hn::Div(hn::Mul(sums.product, sums.product), sums.square);  // NaN if all codes are 0: not greater
      const auto wins = hn::Gt(gain, best);
      best = hn::IfThenElse(wins, gain, best);
      scale = hn::IfThenElse(wins, hn::Div(sums.product, sums.square), scale);
    };
    for (std::size_t i = 0; i < count; ++i) consider(hn::Set(d, 1.0f / ratios[i]));
    consider(inverse_of(scale));
    hn::StoreU(hn::IfThenElse(is_searched, hn::Mul(scale, magnitude), magnitude), d, absmax + r);
  }
}

void find_gains(const FourBitGrid& grid, const float* HWY_RESTRICT weights, std::size_t columns,
                const float* HWY_RESTRICT importance, const float* HWY_RESTRICT largest,
                const float* HWY_RESTRICT absmax, float* HWY_RESTRICT gain) {
  const D d;
  for (std::size_t r = 0; r < rows; r += vector_lanes) {
    const V inverse_largest = inverse_of(hn::LoadU(d, largest + r));
    const V scale = hn::Mul(hn::LoadU(d, absmax + r), inverse_largest);
    const SearchSums sums = sum(grid, weights + r, columns, importance, inverse_largest, inverse_of(scale));
    const V twice = hn::Add(sums.product, sums.product);
    hn::StoreU(hn::Mul(scale, hn::Sub(twice, hn::Mul(scale, sums.square))), d, gain + r);
  }
}

// Calls quantize_vector(weights, r, value, codes) for each column and vector of rows, and passes the differences on.
template <class F> HWY_INLINE void for_each_column(const Columns& columns, const F& quantize_vector) {
  const D d;
  for (std::size_t i = 0; i < columns.count; ++i) {
    V difference[rows / vector_lanes];
    for (std::size_t r = 0; r < rows; r += vector_lanes) {
      const V value = quantize_vector(hn::LoadU(d, columns.weights + i * rows + r), r, columns.codes + i * rows + r);
      difference[r / vector_lanes] = hn::Sub(value, hn::LoadU(d, columns.original + i * rows + r));
      hn::StoreU(difference[r / vector_lanes], d, columns.difference + i * rows + r);
    }
    const float* const passed_on = columns.passed_on + i * InputFactor::tile_columns;
    for (std::size_t c = i + 1; c < columns.count; ++c) {
      const V factor = hn::Set(d, -passed_on[c]);
      for (std::size_t r = 0; r < rows; r += vector_lanes) {
        float* const to = columns.weights + c * rows + r;
        hn::StoreU(fused(d, factor, difference[r / vector_lanes], hn::LoadU(d, to)), d, to);
      }
    }
  }
}

void pass_weights_on(const Columns& columns) {
  for_each_column(columns, [](V w, std::size_t, std::uint8_t*) HWY_ATTR { return w; });
}

HWY_INLINE void store_codes(VI codes, std::uint8_t* HWY_RESTRICT to) {
  HWY_ALIGN std::int32_t room[vector_lanes];
  hn::Store(codes, DI(), room);
  for (std::size_t i = 0; i < vector_lanes; ++i) to[i] = static_cast<std::uint8_t>(room[i]);
}

void quantize_four_bit(const FourBitGrid& grid, const float* HWY_RESTRICT absmax, const float* HWY_RESTRICT inverse,
                       const Columns& columns) {
  const D d;
  const DI di;
  for_each_column(columns, [&](V w, std::size_t r, std::uint8_t* codes) HWY_ATTR {
    const V v = hn::Mul(w, hn::LoadU(d, inverse + r));
    V value = hn::Set(d, grid.value[0]);
    VI number = hn::Zero(di);
    for (std::size_t m = 0; m < 15; ++m) {
      const auto above = hn::Gt(v, hn::Set(d, grid.midpoint[m]));
      value = hn::IfThenElse(above, hn::Set(d, grid.value[m + 1]), value);
      number = hn::Sub(number, hn::VecFromMask(di, hn::RebindMask(di, above)));  // a true mask is -1
    }
    store_codes(number, codes);
    for (std::size_t i = 0; i < vector_lanes; ++i) codes[i] = grid.code[codes[i]];
    return hn::Mul(value, hn::LoadU(d, absmax + r));
  });
}

void quantize_eight_bit(const float* HWY_RESTRICT absmax, const float* HWY_RESTRICT inverse, const Columns& columns) {
  const D d;
  const DI di;
  for_each_column(columns, [&](V w, std::size_t r, std::uint8_t* codes) HWY_ATTR {
    const V limit = hn::Set(d, 127.0f), v = hn::Mul(w, hn::LoadU(d, inverse + r));
    const V above = hn::IfThenElse(hn::Gt(v, hn::Neg(limit)), v, hn::Neg(limit));  // of NaN, too, on every target
    const V code = hn::Round(hn::IfThenElse(hn::Lt(above, limit), above, limit));
    store_codes(hn::ConvertTo(di, code), codes);
    return hn::Mul(hn::Mul(code, hn::LoadU(d, absmax + r)), hn::Set(d, int8::inverse_127));
  });
}

}  // namespace
}  // namespace nibble::row_group::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble::row_group {

HWY_EXPORT(find_largest);
HWY_EXPORT(search);
HWY_EXPORT(find_gains);
HWY_EXPORT(pass_weights_on);
HWY_EXPORT(quantize_four_bit);
HWY_EXPORT(quantize_eight_bit);

FourBitGrid::FourBitGrid(const FourBitTables& tables) : code(tables.code) {
  for (std::size_t i = 0; i < 16; ++i) value[i] = tables.codebook[code[i]];
  for (std::size_t m = 0; m < 15; ++m) midpoint[m] = (value[m] + value[m + 1]) / 2;
}

OfRows largest_magnitudes(const float* weights, std::size_t columns) {
  OfRows largest;
  HWY_DYNAMIC_DISPATCH(find_largest)(weights, columns, largest.data());
  return largest;
}

OfRows search_absmax(const FourBitGrid& grid, const float* weights, std::size_t columns, const float* importance,
                     const OfRows& largest, std::span<const float> ratios) {
  OfRows absmax;
  HWY_DYNAMIC_DISPATCH(search)
  (grid, weights, columns, importance, largest.data(), ratios.data(), ratios.size(), absmax.data());
  return absmax;
}

OfRows gains(const FourBitGrid& grid, const float* weights, std::size_t columns, const float* importance,
             const OfRows& largest, const OfRows& absmax) {
  OfRows gain;
  HWY_DYNAMIC_DISPATCH(find_gains)
  (grid, weights, columns, importance, largest.data(), absmax.data(), gain.data());
  return gain;
}

void pass_on(const Columns& columns) { HWY_DYNAMIC_DISPATCH(pass_weights_on)(columns); }

void quantize(const FourBitGrid& grid, const OfRows& absmax, const Columns& columns) {
  OfRows inverse;
  for (std::size_t r = 0; r < rows; ++r)
    inverse[r] = absmax[r] == 0 ? 0.0f : 1.0f / std::copysign(std::max(std::abs(absmax[r]), 1e-38f), absmax[r]);
  HWY_DYNAMIC_DISPATCH(quantize_four_bit)(grid, absmax.data(), inverse.data(), columns);
}

void quantize_int8(const OfRows& absmax, const Columns& columns) {
  OfRows inverse;
  for (std::size_t r = 0; r < rows; ++r) inverse[r] = absmax[r] == 0 ? 0.0f : 1.0f / absmax[r] * 127;
  HWY_DYNAMIC_DISPATCH(quantize_eight_bit)(absmax.data(), inverse.data(), columns);
}

}  // namespace nibble::row_group
#endif
