// Compiled once per CPU target.
#include "quant/errors/int8_error.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "nibble/int8.hpp"
#include "quant/codecs/int8_rows.hpp"
#include "quant/simd/widen.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/errors/int8_error.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "quant/codecs/int8-inl.hpp"
#include "quant/errors/squares-inl.hpp"
#include "quant/simd/source-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace nibble::int8::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using nibble::HWY_NAMESPACE::Bf16;
using nibble::HWY_NAMESPACE::F16;
using nibble::HWY_NAMESPACE::F32;
using nibble::HWY_NAMESPACE::SquareSums;

// The squares of n weights and of what their codes are decoded to. They are those of rows that follow each other, the
// first of which has `left` weights to come. The end of a row is padded with zeros to squares_step weights: rows that
// are shorter would waste time and accuracy.
template <class Source>
HWY_INLINE void compare_rows(const std::byte* HWY_RESTRICT w, const std::int8_t* HWY_RESTRICT codes, std::size_t n,
                             std::size_t columns, std::size_t left, const float* HWY_RESTRICT absmax,
                             Squares& HWY_RESTRICT squares) {
  const nibble::HWY_NAMESPACE::D d;
  const auto unit = hn::Set(d, inverse_127);
  SquareSums sums;
  for (std::size_t begin = 0, end = left; begin < n; begin = end, end = begin + columns, ++absmax) {
    end = std::min(end, n);
    const auto scale = hn::Set(d, *absmax);
    const auto add = [&](const std::byte* weights, const std::int8_t* its_codes) HWY_ATTR {
      sums.add([&](std::size_t i) HWY_ATTR { return Source::load(d, weights, i); },
               [&](std::size_t i) HWY_ATTR { return decode(d, its_codes + i, scale, unit); });
    };
    std::size_t i = begin;
    for (; i + squares_step <= end; i += squares_step) add(w + i * Source::size, codes + i);
    if (i < end) {
      HWY_ALIGN std::byte last[squares_step * Source::size] = {};
      HWY_ALIGN std::int8_t last_codes[squares_step] = {};
      std::memcpy(last, w + i * Source::size, (end - i) * Source::size);
      std::copy_n(codes + i, end - i, last_codes);
      add(last, last_codes);
    }
  }
  sums.end(squares);
}

#define NIBBLE_COMPARE_ROWS_OF(name, Source)                                                                      \
  void compare_rows_##name(const std::byte* HWY_RESTRICT w, const std::int8_t* HWY_RESTRICT codes, std::size_t n, \
                           std::size_t columns, std::size_t left, const float* HWY_RESTRICT absmax,               \
                           Squares& HWY_RESTRICT squares) {                                                       \
    compare_rows<Source>(w, codes, n, columns, left, absmax, squares);                                            \
  }
NIBBLE_COMPARE_ROWS_OF(f32, F32)
NIBBLE_COMPARE_ROWS_OF(bf16, Bf16)
NIBBLE_COMPARE_ROWS_OF(f16, F16)
#undef NIBBLE_COMPARE_ROWS_OF

}  // namespace nibble::int8::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble::int8 {

HWY_EXPORT(compare_rows_f32);
HWY_EXPORT(compare_rows_bf16);
HWY_EXPORT(compare_rows_f16);

void compare_rows(DType source, std::span<const std::byte> weights, std::span<const std::int8_t> codes,
                  std::uint64_t columns, std::uint64_t left, std::span<const float> absmax, Squares& squares) {
  const auto compare = loop_of(source, HWY_DYNAMIC_DISPATCH(compare_rows_f32), HWY_DYNAMIC_DISPATCH(compare_rows_bf16),
                               HWY_DYNAMIC_DISPATCH(compare_rows_f16));
  compare(weights.data(), codes.data(), codes.size(), columns, left, absmax.data(), squares);
}

ErrorSums error_of_rows(DType source, std::span<const std::byte> weights, std::span<const std::int8_t> codes,
                        std::uint64_t columns, std::uint64_t left, std::span<const float> absmax) {
  if (source != DType::f64 && columns >= squares_step) {
    Squares squares;
    compare_rows(source, weights, codes, columns, left, absmax, squares);
    ErrorSums sums;
    add_squares_of_lanes(squares, codes.size(), sums);
    if (are_usable(sums)) return sums;
  }
  alignas(64) std::array<float, tile_weights> tile;
  alignas(64) std::array<float, tile_weights> decoded;
  for_each_row(columns, columns - left, codes.size(), [&](std::size_t row, std::size_t begin, std::size_t end) {
    decode_row(codes.subspan(begin, end - begin), absmax[row], std::span(decoded).subspan(begin, end - begin));
  });
  return compare_squares(widen(source, weights, tile), std::span(decoded).first(codes.size()));
}

}  // namespace nibble::int8
#endif
