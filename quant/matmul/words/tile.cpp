// The product of tiles in fp32, compiled once per CPU target.
#include "quant/matmul/words/tile.hpp"

#include <algorithm>
#include <cstring>

#include "quant/matmul/counts.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/matmul/words/tile.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "quant/simd/registers-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace nibble::matmul::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<float, 16>;
constexpr std::size_t lanes = hn::MaxLanes(D());
using nibble::HWY_NAMESPACE::has_32_registers;
// The sums of so many rows fill the registers, with the vectors of the panel and one of `a`. Few rows and four vectors
// are faster than the reverse: the rows of `a` are far apart in memory, and would compete for the same lines of L1.
constexpr std::size_t max_rows = 6, vectors = has_32_registers || lanes == 1 ? 4 : 2;
constexpr std::size_t width = vectors * lanes;
// So many products are summed up one after the other, and these sums are then added up. A longer chain rounds worse
// than torch does, which has short ones for few rows. Short chains take more time, but for few rows alone, decoding
// takes most of it, and as the last of many rows they are a small part of them.
constexpr std::size_t chain_of_many_rows = 64, chain_of_few_rows = 8;

template <std::size_t rows>
HWY_INLINE void multiply_rows(const std::byte* HWY_RESTRICT a, std::size_t a_stride, std::size_t words,
                              const float* HWY_RESTRICT panel, float* HWY_RESTRICT sums, std::size_t sums_stride) {
  const D d;
  hn::Vec<D> sum[rows][vectors];
  for (auto& row : sum)
    for (auto& v : row) v = hn::Zero(d);
  for (std::size_t p = 0; p < words; ++p, panel += width) {
    hn::Vec<D> b[vectors];
    for (std::size_t v = 0; v < vectors; ++v) b[v] = hn::Load(d, panel + v * lanes);
    for (std::size_t r = 0; r < rows; ++r) {
      float number = 0;
      std::memcpy(&number, a + r * a_stride + p * sizeof(float), sizeof(float));
      const auto x = hn::Set(d, number);
      for (std::size_t v = 0; v < vectors; ++v) sum[r][v] = hn::MulAdd(x, b[v], sum[r][v]);
    }
  }
  for (std::size_t r = 0; r < rows; ++r, sums += sums_stride)
    for (std::size_t v = 0; v < vectors; ++v)
      hn::Store(hn::Add(hn::Load(d, sums + v * lanes), sum[r][v]), d, sums + v * lanes);
}

void multiply(const std::byte* a, std::size_t a_stride, std::size_t rows, std::size_t words, const std::uint32_t* panel,
              float* sums, std::size_t sums_stride, CacheLines ahead) {
  const std::size_t chain = rows <= max_rows ? chain_of_few_rows : chain_of_many_rows;
  in_parts<max_rows>(rows, [&](auto count, std::size_t first) HWY_ATTR {
    prefetch(ahead.parts(first, first + count(), rows));
    for (std::size_t p = 0; p < words; p += chain)
      multiply_rows<count()>(a + first * a_stride + p * sizeof(float), a_stride, std::min(chain, words - p),
                             reinterpret_cast<const float*>(panel) + p * width, sums + first * sums_stride,
                             sums_stride);
  });
}

void transpose(const std::uint32_t* HWY_RESTRICT rows, std::size_t words, std::uint32_t* HWY_RESTRICT panel,
               std::size_t stride) {
  std::size_t p = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::Full128<std::uint32_t> d32;
  const hn::Full128<std::uint64_t> d64;
  for (; p + 4 <= words; p += 4) {
    const auto r0 = hn::LoadU(d32, rows + p), r1 = hn::LoadU(d32, rows + words + p);
    const auto r2 = hn::LoadU(d32, rows + 2 * words + p), r3 = hn::LoadU(d32, rows + 3 * words + p);
    const auto lower01 = hn::BitCast(d64, hn::InterleaveLower(d32, r0, r1));
    const auto upper01 = hn::BitCast(d64, hn::InterleaveUpper(d32, r0, r1));
    const auto lower23 = hn::BitCast(d64, hn::InterleaveLower(d32, r2, r3));
    const auto upper23 = hn::BitCast(d64, hn::InterleaveUpper(d32, r2, r3));
    const auto store = [&](std::size_t row, auto v)
                           HWY_ATTR { hn::StoreU(hn::BitCast(d32, v), d32, panel + (p + row) * stride); };
    store(0, hn::InterleaveLower(d64, lower01, lower23));
    store(1, hn::InterleaveUpper(d64, lower01, lower23));
    store(2, hn::InterleaveLower(d64, upper01, upper23));
    store(3, hn::InterleaveUpper(d64, upper01, upper23));
  }
#endif
  for (; p < words; ++p)
    for (std::size_t c = 0; c < 4; ++c) panel[p * stride + c] = rows[c * words + p];
}

std::size_t width_of_target() { return width; }

}  // namespace nibble::matmul::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble::matmul {

HWY_EXPORT(multiply);
HWY_EXPORT(transpose);
HWY_EXPORT(width_of_target);

namespace {

void copy(const float* numbers, std::size_t n, std::uint32_t* words) { std::memcpy(words, numbers, n * sizeof(float)); }
void copy_first(const float* first, const float*, std::size_t columns, std::uint32_t* words) {
  copy(first, columns, words);
}

}  // namespace

TileKernel tile_f32() {
  return {HWY_DYNAMIC_DISPATCH(width_of_target)(), 1, HWY_DYNAMIC_DISPATCH(multiply), copy, copy_first, {}};
}

void transpose_four(const std::uint32_t* rows, std::size_t words, std::uint32_t* panel, std::size_t stride) {
  HWY_DYNAMIC_DISPATCH(transpose)(rows, words, panel, stride);
}

}  // namespace nibble::matmul
#endif
