#include "quant/simd/transpose.hpp"

#include <algorithm>
#include <cassert>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/simd/transpose.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace nibble::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Squares of N x N elements are transposed in N vectors of 16 bytes: the copies wait for the cache, so wider vectors
// would not help.
template <class Word>
inline constexpr std::size_t square_size = std::min<std::size_t>(16 / sizeof(Word), HWY_LANES(Word));

// Interleaving the first half of the vectors with the second moves the highest bit of the row of each element to the
// lowest bit of its column. After log2(N) steps, rows and columns have changed places.
template <class Word>
HWY_INLINE void transpose_square(const std::byte* from, std::size_t from_stride, std::byte* to, std::size_t to_stride) {
  constexpr std::size_t n = square_size<Word>;
  const hn::FixedTag<Word, n> d;
  hn::Vec<decltype(d)> square[n];
  for (std::size_t i = 0; i < n; ++i) square[i] = hn::LoadU(d, reinterpret_cast<const Word*>(from + i * from_stride));
#if HWY_TARGET != HWY_SCALAR
  for (std::size_t step = 1; step < n; step *= 2) {
    hn::Vec<decltype(d)> next[n];
    for (std::size_t i = 0; i < n / 2; ++i) {
      next[2 * i] = hn::InterleaveLower(d, square[i], square[i + n / 2]);
      next[2 * i + 1] = hn::InterleaveUpper(d, square[i], square[i + n / 2]);
    }
    for (std::size_t i = 0; i < n; ++i) square[i] = next[i];
  }
#endif
  for (std::size_t i = 0; i < n; ++i) hn::StoreU(square[i], d, reinterpret_cast<Word*>(to + i * to_stride));
}

// Strides are in bytes.
template <class Word>
void transpose_words(const std::byte* from, std::size_t from_stride, std::size_t rows, std::size_t columns,
                     std::byte* to, std::size_t to_stride) {
  constexpr std::size_t n = square_size<Word>, width = sizeof(Word);
  const auto copy = [&](std::size_t first_row, std::size_t first_column, std::size_t end_column) {
    for (std::size_t c = first_column; c < end_column; ++c)
      for (std::size_t r = first_row; r < rows; ++r)
        std::memcpy(to + c * to_stride + r * width, from + r * from_stride + c * width, width);
  };
  const std::size_t whole_rows = rows / n * n, whole_columns = columns / n * n;
  // N rows of the target are written from beginning to end.
  for (std::size_t c = 0; c < whole_columns; c += n) {
    for (std::size_t r = 0; r < whole_rows; r += n)
      transpose_square<Word>(from + r * from_stride + c * width, from_stride, to + c * to_stride + r * width,
                             to_stride);
    copy(whole_rows, c, c + n);
  }
  copy(0, whole_columns, columns);
}

void transpose_2(const std::byte* from, std::size_t from_stride, std::size_t rows, std::size_t columns, std::byte* to,
                 std::size_t to_stride) {
  transpose_words<std::uint16_t>(from, from_stride, rows, columns, to, to_stride);
}
void transpose_4(const std::byte* from, std::size_t from_stride, std::size_t rows, std::size_t columns, std::byte* to,
                 std::size_t to_stride) {
  transpose_words<std::uint32_t>(from, from_stride, rows, columns, to, to_stride);
}
void transpose_8(const std::byte* from, std::size_t from_stride, std::size_t rows, std::size_t columns, std::byte* to,
                 std::size_t to_stride) {
  transpose_words<std::uint64_t>(from, from_stride, rows, columns, to, to_stride);
}

}  // namespace nibble::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble {

HWY_EXPORT(transpose_2);
HWY_EXPORT(transpose_4);
HWY_EXPORT(transpose_8);

void transpose(const std::byte* from, std::size_t from_stride, std::size_t rows, std::size_t columns, std::size_t width,
               std::byte* to, std::size_t to_stride) {
  assert(width == 2 || width == 4 || width == 8);
  const auto transpose_here = width == 2   ? HWY_DYNAMIC_DISPATCH(transpose_2)
                              : width == 4 ? HWY_DYNAMIC_DISPATCH(transpose_4)
                                           : HWY_DYNAMIC_DISPATCH(transpose_8);
  transpose_here(from, from_stride * width, rows, columns, to, to_stride * width);
}

}  // namespace nibble
#endif
