// dx for few rows of dy.
#include "quant/matmul/few_rows_dx.hpp"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>

#include "nibble/int8.hpp"
#include "quant/codecs/four_bit/four_bit.hpp"
#include "quant/matmul/arranged.hpp"
#include "quant/matmul/codes/code_kernel.hpp"
#include "quant/matmul/codes/int8_kernel.hpp"
#include "quant/matmul/words/row_kernel.hpp"
#include "quant/matmul/words/tile.hpp"

namespace nibble::matmul {
namespace {

constexpr std::size_t max_few_rows_dx = 16;
// Columns whose weights are decoded at a time. They fit L1.
constexpr std::size_t strip_columns = 512;
// So many rows of a weight [n, k] are summed up one after the other, and these sums are then added up: at most 128, and
// fewer of a small weight, where a long chain would round worse than torch does. The bytes of a result depend on it,
// and on max_parts.
constexpr std::size_t max_chain_rows = 128;
static_assert(max_chain_rows % max_added_rows == 0 && strip_columns <= max_rounded_columns);
std::size_t chain_rows(std::size_t n) {
  return std::min(ceil_div(n, 8 * max_added_rows) * max_added_rows, max_chain_rows);
}

// For up to four rows, a task has all columns of some rows of the weight, so that memory is read in order: a strip of
// columns has a few lines of every page, which takes two to three times as long. The tasks' sums are then added up.
constexpr std::size_t max_rows_in_parts = 4, max_parts = 16, band_columns = 8192;
static_assert(band_columns <= max_columns_of_added_integers);

std::size_t rows_of_part(std::size_t n) {
  return std::max<std::size_t>(1, ceil_div(ceil_div(n, max_parts), max_chain_rows)) * max_chain_rows;
}

bool fits_dx(const Weight& weight, const Operands& operands) {
  return operands.m <= max_few_rows_dx && operands.m * weight.n() <= max_arranged && weight.k() % 32 == 0;
}

// Tiles in bf16 take half of the time where their kernel decodes the weight itself.
constexpr std::size_t min_tile_blocksize = 64;
bool has_better_tiles(const Weight& weight, const Operands& operands) {
  return operands.m > max_rows_in_parts && operands.dtype == DType::bf16 && weight.k() % min_tile_blocksize == 0 &&
         prefers_bf16();
}

void add_and_clear(float* __restrict chain, std::size_t n, float* __restrict sums) {
  for (std::size_t i = 0; i < n; ++i) {
    sums[i] += chain[i];
    chain[i] = 0;
  }
}

// sums[i * stride + c] += the products of `rows` of the weight, in these columns, with row i of dy. add(rows, columns,
// chain, stride) adds those of up to max_added_rows, and `length` rows are a chain. `chain` has as many numbers as the
// sums, and is 0 before and after.
template <class Add>
void add_chains(const Add& add, Range rows, std::size_t length, Range columns, std::size_t m, float* chain, float* sums,
                std::size_t stride) {
  for (std::size_t first = 0; first < rows.size; first += length) {
    const std::size_t end = std::min(first + length, rows.size);
    for (std::size_t row = first; row < end; row += max_added_rows)
      add(Range{rows.first + row, std::min(max_added_rows, end - row)}, columns, chain, columns.size);
    for (std::size_t i = 0; i < m; ++i) add_and_clear(chain + i * columns.size, columns.size, sums + i * stride);
  }
}

// Rounds the sums of a strip, of which restore(sums) puts a row in order.
template <class Restore>
void round_strip(const Operands& operands, Range columns, std::size_t k, const Restore& restore, float* sums) {
  for (std::size_t i = 0; i < operands.m; ++i) restore(std::span(sums + i * strip_columns, columns.size));
  round(operands, {0, operands.m}, columns, k, sums, strip_columns);
}

Range strip_of(std::size_t number, std::size_t k) {
  return {number * strip_columns, std::min(strip_columns, k - number * strip_columns)};
}

template <class Add, class Restore>
void multiply_in_strips(std::size_t n, std::size_t k, const Operands& operands, const Executor& executor,
                        const Add& add, const Restore& restore) {
  executor(ceil_div(k, strip_columns), [&](std::size_t begin, std::size_t end) {
    alignas(64) std::array<float, max_few_rows_dx * strip_columns> sums, chain{};
    for (std::size_t strip = begin; strip < end; ++strip) {
      const Range columns = strip_of(strip, k);
      std::fill_n(sums.begin(), operands.m * strip_columns, 0.0f);
      add_chains(add, {0, n}, chain_rows(n), columns, operands.m, chain.data(), sums.data(), strip_columns);
      round_strip(operands, columns, k, restore, sums.data());
    }
  });
}

template <class Add, class Restore>
void multiply_in_parts(std::size_t n, std::size_t k, const Operands& operands, const Executor& executor, const Add& add,
                       const Restore& restore) {
  const std::size_t m = operands.m, part_rows = rows_of_part(n), parts = ceil_div(n, part_rows);
  const Lines<float> sums(parts * m * k);
  executor(parts, [&](std::size_t begin, std::size_t end) {
    const Lines<float> chain(m * std::min(k, band_columns));
    std::fill_n(chain.data(), m * std::min(k, band_columns), 0.0f);
    for (std::size_t part = begin; part < end; ++part) {
      const Range rows{part * part_rows, std::min(part_rows, n - part * part_rows)};
      float* const of_part = sums.data() + part * m * k;
      std::fill_n(of_part, m * k, 0.0f);
      for (std::size_t column = 0; column < k; column += band_columns)
        add_chains(add, rows, chain_rows(n), {column, std::min(band_columns, k - column)}, m, chain.data(),
                   of_part + column, k);
    }
  });
  executor(ceil_div(k, strip_columns), [&](std::size_t begin, std::size_t end) {
    alignas(64) std::array<float, max_rows_in_parts * strip_columns> all;
    for (std::size_t strip = begin; strip < end; ++strip) {
      const Range columns = strip_of(strip, k);
      for (std::size_t i = 0; i < m; ++i) {
        float* const row = all.data() + i * strip_columns;
        std::fill_n(row, columns.size, 0.0f);
        for (std::size_t part = 0; part < parts; ++part) {
          const float* const from = sums.data() + (part * m + i) * k + columns.first;
          for (std::size_t c = 0; c < columns.size; ++c) row[c] += from[c];
        }
      }
      round_strip(operands, columns, k, restore, all.data());
    }
  });
}

template <class Add, class Restore>
void multiply_dx(std::size_t n, std::size_t k, const Operands& operands, const Executor& executor, const Add& add,
                 const Restore& restore) {
  if (operands.m <= max_rows_in_parts)
    multiply_in_parts(n, k, operands, executor, add, restore);
  else
    multiply_in_strips(n, k, operands, executor, add, restore);
}

// Adds products of rows that decode(row, columns, words) decodes, a strip at a time.
template <class Decode> auto add_decoded(const Decode& decode, const float* dy, std::size_t n, std::size_t m) {
  return [=](Range rows, Range columns, float* chain, std::size_t stride) {
    alignas(64) std::array<std::uint32_t, max_added_rows * strip_columns> weights;
    for (std::size_t first = 0; first < columns.size; first += strip_columns) {
      const Range strip{columns.first + first, std::min(strip_columns, columns.size - first)};
      for (std::size_t r = 0; r < rows.size; ++r) decode(rows.first + r, strip, weights.data() + r * strip_columns);
      add_rows(reinterpret_cast<const float*>(weights.data()), strip_columns, rows.size, strip.size, dy + rows.first, n,
               m, chain + first, stride);
    }
  };
}

// The absmax of some columns of a few rows, row by row. If the columns are all there are, they follow each other.
const float* absmax_of(const FourBitRows& weight, Range rows, Range columns, std::span<float> room) {
  const std::size_t k = weight.k(), blocksize = weight.blocksize(), blocks = columns.size / blocksize;
  const std::size_t at = (rows.first * k + columns.first) / blocksize;
  if (columns.size == k) return weight.absmax(at, rows.size * blocks, room).data();
  for (std::size_t r = 0; r < rows.size; ++r) {
    const std::span<float> to = room.subspan(r * blocks, blocks);
    const std::span<const float> from = weight.absmax(at + r * k / blocksize, blocks, to);
    if (from.data() != to.data()) std::copy(from.begin(), from.end(), to.begin());
  }
  return room.data();
}

AddIntegers add_integers_for(DType dtype, std::size_t m) {
  if (dtype != DType::bf16 || m != 1) return nullptr;
  if (prefers_bf16()) return add_code_rows_vnni();
  const AddIntegers vbmi = add_code_rows_vbmi();
  return vbmi != nullptr ? vbmi : add_code_rows_int16();
}

// Adds products of rows whose codes are decoded in registers.
auto add_codes(const FourBitRows& weight, DType dtype, const float* dy, std::size_t m) {
  const AddIntegers add_integers = add_integers_for(dtype, m);
  return [=, &weight](Range rows, Range columns, float* chain, std::size_t stride) {
    std::array<float, max_added_rows * band_columns / min_blocksize> room;
    const std::size_t k = weight.k();
    const CodeRows codes{.tables = weight.tables(),
                         .packed = weight.packed() + (rows.first * k + columns.first) / 2,
                         .packed_stride = k / 2,
                         .absmax = absmax_of(weight, rows, columns, room),
                         .absmax_stride = columns.size / weight.blocksize(),
                         .blocksize = weight.blocksize(),
                         .rows = rows.size,
                         .n = columns.size,
                         .ahead = max_added_rows * k / 2};
    if (add_integers != nullptr && add_integers(codes, dy + rows.first, chain)) return;
    add_code_rows(codes, dy + rows.first, weight.n(), m, chain, stride);
  };
}

// The same with int8 codes, whose factors are absmax times dy. Where factor_of_int8_codes() refuses one,
// add_weights() adds products of weights.
template <class AddWeights>
auto add_int8_codes(const Int8Rows& weight, const float* dy, std::size_t m, const AddWeights& add_weights) {
  assert(m <= max_rows_in_parts);
  return [=, &weight](Range rows, Range columns, float* chain, std::size_t stride) {
    std::array<float, max_rows_in_parts * max_added_rows> factors;
    for (std::size_t i = 0; i < m; ++i)
      for (std::size_t r = 0; r < rows.size; ++r) {
        const float absmax = factor_of_int8_codes(weight.absmax(rows.first + r));
        const float factor = factor_of_int8_codes(dy[i * weight.n() + rows.first + r] * absmax * int8::inverse_127);
        if (std::isnan(factor)) return add_weights(rows, columns, chain, stride);
        factors[i * max_added_rows + r] = factor;
      }
    const std::size_t k = weight.k();
    add_int8_code_rows({.codes = weight.codes(rows.first) + columns.first,
                        .stride = k,
                        .rows = rows.size,
                        .n = columns.size,
                        .ahead = max_added_rows * k},
                       factors.data(), max_added_rows, m, chain, stride);
  };
}

// The sums of arranged columns in order.
void restore(std::span<float> sums) {
  std::array<float, strip_columns> arranged;
  std::copy(sums.begin(), sums.end(), arranged.begin());
  restore_four_bit(arranged.data(), sums.size(), sums.data());
}

}  // namespace

bool are_few_rows_dx(const FourBitRows& weight, const Operands& operands) {
  // A strip starts and ends with a block.
  return fits_dx(weight, operands) && weight.rows_have_whole_blocks() && weight.blocksize() <= strip_columns &&
         !(has_better_tiles(weight, operands) && weight.blocksize() >= min_tile_blocksize);
}

bool are_few_rows_dx(const Int8Rows& weight, const Operands& operands) {
  return fits_dx(weight, operands) && !has_better_tiles(weight, operands);
}

void multiply_rows_dx(const FourBitRows& weight, const Operands& operands, const Executor& executor) {
  const std::size_t blocksize = weight.blocksize(), n = weight.n(), k = weight.k(), m = operands.m;
  const Lines<std::uint32_t> words = arranged(in_fp32, operands, n);
  const auto* const dy = reinterpret_cast<const float*>(words.data());
  if (m <= max_m_of_add_code_rows())
    return multiply_dx(n, k, operands, executor, add_codes(weight, operands.dtype, dy, m), restore);
  const RowKernel kernel = row_kernel_f32();
  const auto decode = [&](std::size_t row, Range columns, std::uint32_t* to) {
    std::array<float, strip_columns / min_blocksize> room;
    const std::size_t at = row * k + columns.first;
    kernel.decoder.four_bit(weight.tables(), weight.packed() + at / 2,
                            weight.absmax(at / blocksize, columns.size / blocksize, room).data(), blocksize,
                            columns.size, max_added_rows * k / 2, to);
  };
  multiply_dx(n, k, operands, executor, add_decoded(decode, dy, n, m), restore);
}

void multiply_rows_dx(const Int8Rows& weight, const Operands& operands, const Executor& executor) {
  const std::size_t n = weight.n(), k = weight.k();
  const Lines<std::uint32_t> words = arranged(in_fp32, operands, n);
  const RowKernel kernel = row_kernel_f32();
  const auto decode = [&](std::size_t row, Range columns, std::uint32_t* to) {
    kernel.decoder.int8(weight.codes(row) + columns.first, weight.absmax(row), columns.size, max_added_rows * k, to);
  };
  const auto* const dy = reinterpret_cast<const float*>(words.data());
  const auto add_weights = add_decoded(decode, dy, n, operands.m);
  const auto keep = [](std::span<float>) {};
  if (operands.m <= max_rows_in_parts)
    return multiply_in_parts(n, k, operands, executor, add_int8_codes(weight, dy, operands.m, add_weights), keep);
  multiply_in_strips(n, k, operands, executor, add_weights, keep);
}

}  // namespace nibble::matmul
