#include "quant/matmul/amx/amx_weight.hpp"

#include <algorithm>
#include <array>

#include "nibble/bf16.hpp"
#include "nibble/int8.hpp"
#include "quant/codecs/four_bit/four_bit.hpp"
#include "quant/matmul/codes/int8_kernel.hpp"

namespace nibble::matmul {

AmxFourBit::AmxFourBit(const FourBitRows& weight, const AmxKernel& kernel)
    : weight_(weight),
      kernel_(kernel),
      blocksize_(weight.blocksize()),
      blocks_of_row_(weight.k() / blocksize_),
      has_whole_blocks_(weight.rows_have_whole_blocks()) {}

void AmxFourBit::start_rows(Range rows) {
  started_ = rows;
  if (!has_whole_blocks_) return;
  const std::size_t count = rows.size * blocks_of_row_;
  if (weight_.has_nested_absmax()) room_.resize(std::max(room_.size(), count));
  absmax_ = weight_.absmax(rows.first * blocks_of_row_, count, room_).data();
}

void AmxFourBit::numbers(std::size_t row, Range columns, std::size_t term, std::span<std::uint16_t> to) const {
  std::array<float, Weight::max_part> wide;
  const std::span<float> weights(wide.data(), columns.size);
  weight_.decode(row, columns.first, columns.size, wide.data());
  for (std::size_t i = 0; i <= term; ++i) take_term(weights, to.first(columns.size));
}

bool AmxFourBit::rows(Range rows, Range depth, std::size_t term, LinesAhead& ahead, std::size_t lines_of_row,
                      std::uint32_t* to, std::size_t stride) const {
  if (!has_whole_blocks_ || depth.size % kernel_.rows.multiple != 0) return false;
  const float* absmax = absmax_ + (rows.first - started_.first) * blocks_of_row_ + depth.first / blocksize_;
  const std::uint8_t* packed = weight_.packed() + (rows.first * weight_.k() + depth.first) / 2;
  for (std::size_t r = 0; r < rows.size; ++r) {
    ahead.ask(lines_of_row);
    kernel_.rows.four_bit(weight_.tables(), packed, absmax, std::min(blocksize_, depth.size), depth.size, term, to);
    packed += weight_.k() / 2;
    absmax += blocks_of_row_;
    to += stride;
  }
  return true;
}

bool AmxFourBit::pairs(Range rows, Range columns, std::size_t term, LinesAhead& ahead, std::uint32_t* panel,
                       std::size_t group_stride) {
  if (!has_whole_blocks_ || columns.size % kernel_.pairs.multiple != 0) return false;
  const std::size_t blocks = ceil_div(columns.size, blocksize_), k = weight_.k();
  room_.resize(std::max(room_.size(), rows.size * blocks));
  std::size_t block = (rows.first * k + columns.first) / blocksize_;
  for (std::size_t r = 0; r < rows.size; ++r, block += blocks_of_row_)
    for (std::size_t b = 0; b < blocks; ++b) room_[r * blocks + b] = weight_.absmax(block + b);
  kernel_.pairs.four_bit({.tables = weight_.tables(),
                          .packed = weight_.packed() + (rows.first * k + columns.first) / 2,
                          .packed_stride = k / 2,
                          .absmax = room_.data(),
                          .absmax_stride = blocks,
                          .blocksize = std::min(blocksize_, columns.size),
                          .rows = rows.size,
                          .n = columns.size,
                          .ahead = 0},
                         term, ahead, panel, group_stride);
  return true;
}

std::vector<float> AmxInt8::factors(const Int8Rows& weight) {
  std::vector<float> factors(weight.n());
  for (std::size_t row = 0; row < factors.size(); ++row)
    factors[row] = factor_of_int8_codes(weight.absmax(row)) * int8::inverse_127;
  return factors;
}

void AmxInt8::numbers(std::size_t row, Range columns, std::size_t /*term*/, std::span<std::uint16_t> to) const {
  const std::int8_t* const codes = weight_.codes(row) + columns.first;
  std::transform(codes, codes + columns.size, to.begin(), [](float code) { return bf16::from_float(code); });
}

bool AmxInt8::rows(Range rows, Range depth, std::size_t /*term*/, LinesAhead& ahead, std::size_t lines_of_row,
                   std::uint32_t* to, std::size_t stride) const {
  if (depth.size % kernel_.rows.multiple != 0) return false;
  for (std::size_t r = 0; r < rows.size; ++r, to += stride) {
    ahead.ask(lines_of_row);
    kernel_.rows.int8(weight_.codes(rows.first + r) + depth.first, depth.size, to);
  }
  return true;
}

bool AmxInt8::pairs(Range rows, Range columns, std::size_t /*term*/, LinesAhead& ahead, std::uint32_t* panel,
                    std::size_t group_stride) const {
  if (columns.size % kernel_.pairs.multiple != 0) return false;
  const std::size_t lines_of_pair = ceil_div(ahead.left_of_rows(), rows.size);
  for (std::size_t r = 0; r < rows.size; r += 2, panel += amx_words) {
    const std::int8_t* const first = weight_.codes(rows.first + r) + columns.first;
    ahead.ask(lines_of_pair);
    kernel_.pairs.int8(first, first + weight_.k(), columns.size, panel, group_stride);
  }
  return true;
}

}  // namespace nibble::matmul
