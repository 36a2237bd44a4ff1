#include "quant/merge/low_rank.hpp"

#include <algorithm>
#include <array>
#include <cassert>

#include "core/checked.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/merge/low_rank.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "quant/simd/lanes-inl.hpp"

#ifndef NIBBLE_QUANT_MERGE_LOW_RANK
#define NIBBLE_QUANT_MERGE_LOW_RANK
namespace nibble {

// Rows that one tile of the right factor is multiplied with at a time: enough sums to hide the latency of an fma.
inline constexpr std::size_t group_rows = 4;

// A tile: [rows, tile_columns] of the result.
struct LowRankTile {
  const float* left;   // [rows, rank]
  const float* right;  // [rank, tile_columns]
  std::size_t rank;
  const float* from;  // rows are `stride` apart, also in `to`
  float* to;
  std::size_t stride;
  float scale;
};

}  // namespace nibble
#endif

HWY_BEFORE_NAMESPACE();
namespace nibble::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Registers: `rows` times `width` sums, `width` vectors of the right factor, an element of the left one.
template <std::size_t rows, std::size_t width>
HWY_INLINE void add_columns(const LowRankTile& tile, std::size_t column) {
  const D d;
  V sum[rows][width];
  for (auto& row : sum)
    for (auto& v : row) v = hn::Zero(d);
  for (std::size_t k = 0; k < tile.rank; ++k) {
    V right[width];
    for (std::size_t v = 0; v < width; ++v)
      right[v] = hn::LoadU(d, tile.right + k * LowRankProduct::tile_columns + column + v * vector_lanes);
    for (std::size_t i = 0; i < rows; ++i) {
      const V left = hn::Set(d, tile.left[i * tile.rank + k]);
      for (std::size_t v = 0; v < width; ++v) sum[i][v] = fused(d, left, right[v], sum[i][v]);
    }
  }
  const V scale = hn::Set(d, tile.scale);
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t v = 0; v < width; ++v) {
      const std::size_t at = i * tile.stride + column + v * vector_lanes;
      hn::StoreU(hn::Add(hn::LoadU(d, tile.from + at), hn::Mul(sum[i][v], scale)), d, tile.to + at);
    }
}

template <std::size_t rows> HWY_INLINE void add_rows(const LowRankTile& tile) {
  constexpr std::size_t width = vector_lanes == 16 ? 4 : 2;  // of 32 registers or 16
  for (std::size_t c = 0; c < LowRankProduct::tile_columns; c += width * vector_lanes)
    add_columns<rows, width>(tile, c);
}

// All rows by one tile of the right factor, which stays in L1 meanwhile (16 KiB at rank 64).
void add_low_rank(LowRankTile tile, std::size_t rows) {
  const auto next = [&](std::size_t n) {
    tile.left += n * tile.rank, tile.from += n * tile.stride, tile.to += n * tile.stride;
  };
  for (; rows >= group_rows; rows -= group_rows, next(group_rows)) add_rows<group_rows>(tile);
  for (; rows > 0; --rows, next(1)) add_rows<1>(tile);
}

}  // namespace nibble::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble {

HWY_EXPORT(add_low_rank);

namespace {

// `n` columns from `shift` on, by way of a whole tile.
void add_part_of_tile(const LowRankTile& part, std::uint64_t rows, std::uint64_t shift, std::uint64_t n) {
  alignas(64) std::array<float, LowRankProduct::tile_columns> whole{};
  LowRankTile tile = part;
  tile.from = tile.to = whole.data();
  for (std::uint64_t r = 0; r < rows; ++r, tile.left += tile.rank) {
    std::copy_n(part.from + r * part.stride, n, whole.data() + shift);
    HWY_DYNAMIC_DISPATCH(add_low_rank)(tile, 1);
    std::copy_n(whole.data() + shift, n, part.to + r * part.stride);
  }
}

}  // namespace

LowRankProduct::LowRankProduct(std::uint64_t experts, std::uint64_t rows, std::uint64_t columns, std::uint64_t rank)
    : rows_(rows),
      columns_(columns),
      rank_(rank),
      tiles_((columns + tile_columns - 1) / tile_columns),
      left_((Checked(experts) * rows * rank).value()),
      right_((Checked(experts) * tiles_ * rank * tile_columns).value()) {}

std::uint64_t LowRankProduct::memory_bytes(std::uint64_t experts, std::uint64_t rows, std::uint64_t columns,
                                           std::uint64_t rank) {
  const std::uint64_t tiles = columns / tile_columns + (columns % tile_columns != 0 ? 1 : 0);
  return (Checked(experts) * rank * (Checked(rows) + Checked(tiles) * tile_columns) * sizeof(float)).value();
}

void LowRankProduct::add(std::uint64_t first, float scale, std::span<const float> from, std::span<float> to) const {
  assert(from.size() == to.size());
  for (std::uint64_t at = first, end = first + to.size(); at < end;) {
    // As many whole rows of an expert as there are, or a part of one.
    const std::uint64_t row = at / columns_, begin = at % columns_, last = std::min(columns_, begin + (end - at));
    const bool whole = begin == 0 && last == columns_;
    const std::uint64_t rows = whole ? std::min((end - at) / columns_, rows_ - row % rows_) : 1;
    for (std::uint64_t t = begin / tile_columns; t * tile_columns < last; ++t) {
      const std::uint64_t column = t * tile_columns, from_column = std::max(column, begin);
      const std::uint64_t i = at - first + from_column - begin;
      const LowRankTile tile{left_.data() + row * rank_,
                             right_.data() + (row / rows_ * tiles_ + t) * rank_ * tile_columns,
                             rank_,
                             from.data() + i,
                             to.data() + i,
                             columns_,
                             scale};
      const std::uint64_t n = std::min(column + tile_columns, last) - from_column;
      if (n == tile_columns)
        HWY_DYNAMIC_DISPATCH(add_low_rank)(tile, rows);
      else
        add_part_of_tile(tile, rows, from_column - column, n);
    }
    at += whole ? rows * columns_ : last - begin;
  }
}

}  // namespace nibble
#endif
