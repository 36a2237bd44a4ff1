#include "quant/matmul/weight.hpp"

#include <fmt/format.h>
#include <hwy/cache_control.h>

#include <algorithm>
#include <array>
#include <limits>
#include <memory>

#include "nibble/codec.hpp"
#include "nibble/error.hpp"
#include "nibble/int8.hpp"
#include "nibble/nested.hpp"
#include "quant/codecs/four_bit/four_bit.hpp"
#include "quant/matmul/lines.hpp"
#include "quant/matmul/words/row_kernel.hpp"
#include "quant/matmul/words/tile.hpp"
#include "quant/simd/prefetch.hpp"

namespace nibble::matmul {
namespace {

const FourBitTables& tables_of(Codebook codebook) {
  static const std::unique_ptr<const Codec> nf4 = make_codec("nf4"), fp4 = make_codec("fp4");
  return dynamic_cast<const FourBitCodec&>(codebook == Codebook::nf4 ? *nf4 : *fp4).tables();
}

// n k, or an error if sizes in bytes could overflow.
std::size_t weights_of(std::size_t n, std::size_t k) {
  constexpr std::size_t max_weights = std::numeric_limits<std::size_t>::max() / 256;
  if (k != 0 && n > max_weights / k)
    throw Error(Errc::usage, fmt::format("weight: cannot have the shape [{}, {}]", n, k));
  return n * k;
}

void check_size(const char* name, std::size_t size, std::size_t expected, std::size_t n, std::size_t k) {
  if (size != expected)
    throw Error(Errc::usage,
                fmt::format("{}: has {} values, and a weight of shape [{}, {}] needs {}", name, size, n, k, expected));
}

}  // namespace

FourBitRows::FourBitRows(const FourBitWeight& weight)
    : Weight(weight.n, weight.k), weight_(weight), tables_(tables_of(weight.codebook)) {
  const std::size_t weights = weights_of(weight.n, weight.k);
  const bool nested = weight.absmax.empty() && !weight.absmax_codes.empty();
  const auto check = [&](const char* name, std::size_t size, std::size_t expected) {
    check_size(name, size, expected, weight.n, weight.k);
  };
  if (weight.blocksize < min_blocksize || weight.blocksize > FourBitTables::max_blocksize ||
      (weight.blocksize & (weight.blocksize - 1)) != 0)
    throw Error(Errc::usage, fmt::format("blocksize: is {}, not one of 32, 64, ..., 4096", weight.blocksize));
  const std::size_t blocks = ceil_div(weights, weight.blocksize);
  check("packed", weight.packed.size(), ceil_div(weights, 2));
  check("absmax", weight.absmax.size(), nested ? 0 : blocks);
  check("absmax_codes", weight.absmax_codes.size(), nested ? blocks : 0);
  check("nested_absmax", weight.nested_absmax.size(), nested ? ceil_div(blocks, nested::blocksize) : 0);
  check("nested_codebook", weight.nested_codebook.size(), nested ? nested::codebook.size() : 0);
  if (nested) nested_table_ = nested::Table(std::span<const float, 256>(weight.nested_codebook));
}

std::span<const float> FourBitRows::absmax(std::size_t first, std::size_t count, std::span<float> room) const {
  if (!has_nested_absmax()) return weight_.absmax.subspan(first, count);
  nested_table_.decode_slice(first, weight_.absmax_codes, weight_.nested_absmax, weight_.nested_offset,
                             room.first(count));
  return room.first(count);
}

void FourBitRows::decode(std::size_t row, std::size_t column, std::size_t count, float* out) const {
  std::array<float, 64> room;
  const std::size_t blocksize = weight_.blocksize;
  std::size_t at = row * k() + column;
  const std::size_t end = at + count;
  // The second code of a byte. What follows starts with a byte.
  if (at % 2 != 0 && at < end) {
    const std::uint8_t code = weight_.packed[at / 2] & 15;
    *out++ = tables_.codebook[code] * absmax(at / blocksize, 1, room)[0];
    ++at;
  }
  while (at < end) {
    // The rest of a block, or whole blocks.
    const std::size_t rest = blocksize - at % blocksize;
    const std::size_t part = std::min(end - at, rest < blocksize ? rest : blocksize * room.size());
    const std::size_t blocks = ceil_div(part, blocksize);
    decode_four_bit(tables_, weight_.packed.subspan(at / 2, ceil_div(part, 2)), absmax(at / blocksize, blocks, room),
                    blocksize, {out, part});
    out += part;
    at += part;
  }
}

std::size_t FourBitRows::absmax_of_part(std::size_t first, std::size_t count, std::size_t ahead, float* out) const {
  const std::size_t block = first / weight_.blocksize;
  const bool is_in_block = count > 0 && (first + count - 1) / weight_.blocksize == block;
  const std::size_t blocksize = is_in_block ? count : weight_.blocksize, blocks = count / blocksize;
  if (count % 32 != 0 || first % 2 != 0 || (!is_in_block && (first % blocksize != 0 || count % blocksize != 0)))
    return 0;
  if (!has_nested_absmax()) {
    std::copy_n(weight_.absmax.data() + block, blocks, out);
    return blocksize;
  }
  const std::uint8_t* const codes = weight_.absmax_codes.data() + block;
  const float *const codebook = weight_.nested_codebook.data(), *const scale = weight_.nested_absmax.data();
  hwy::Prefetch(codes + ahead / weight_.blocksize);
  for (std::size_t i = 0; i < blocks; ++i)
    out[i] = codebook[codes[i]] * scale[(block + i) / nested::blocksize] + weight_.nested_offset;
  return blocksize;
}

bool FourBitRows::decode_words(const RowDecoder& decoder, std::size_t row, std::size_t column, std::size_t count,
                               std::size_t ahead, std::uint32_t* words) const {
  if (count % decoder.multiple != 0) return false;
  std::array<float, max_part / min_blocksize> absmax;
  const std::size_t at = row * k() + column, blocksize = absmax_of_part(at, count, ahead, absmax.data());
  if (blocksize == 0) return false;
  decoder.four_bit(tables_, packed() + at / 2, absmax.data(), blocksize, count, ahead / 2, words);
  return true;
}

bool FourBitRows::decode_pairs(const PairDecoder& decoder, std::size_t row, Range columns, std::size_t ahead,
                               std::uint32_t* panel, std::size_t group_stride) const {
  if (columns.size % decoder.multiple != 0) return false;
  std::array<float, 2 * max_part / min_blocksize> absmax;
  const std::size_t at = row * k() + columns.first, blocksize = absmax_of_part(at, columns.size, ahead, absmax.data());
  if (blocksize == 0 || blocksize % decoder.multiple != 0) return false;
  const std::size_t blocks = columns.size / blocksize;
  if (absmax_of_part(at + k(), columns.size, ahead, absmax.data() + blocks) == 0) return false;
  decoder.four_bit({.tables = tables_,
                    .packed = packed() + at / 2,
                    .packed_stride = k() / 2,
                    .absmax = absmax.data(),
                    .absmax_stride = blocks,
                    .blocksize = blocksize,
                    .rows = 2,
                    .n = columns.size,
                    .ahead = ahead / 2},
                   panel, group_stride);
  return true;
}

void FourBitRows::prefetch(std::size_t row, std::size_t column, std::size_t count) const {
  const std::size_t first = row * k() + column;
  for (std::size_t i = 0; i < count / 2; i += line_bytes) prefetch_to_l2(packed() + first / 2 + i);
  if (has_nested_absmax()) prefetch_to_l2(weight_.absmax_codes.data() + first / weight_.blocksize);
}

Int8Rows::Int8Rows(const Int8Weight& weight) : Weight(weight.n, weight.k), weight_(weight) {
  check_size("codes", weight.codes.size(), weights_of(weight.n, weight.k), weight.n, weight.k);
  check_size("absmax", weight.absmax.size(), weight.n, weight.n, weight.k);
}

void Int8Rows::decode(std::size_t row, std::size_t column, std::size_t count, float* out) const {
  int8::decode_row({codes(row) + column, count}, absmax(row), {out, count});
}

bool Int8Rows::decode_words(const RowDecoder& decoder, std::size_t row, std::size_t column, std::size_t count,
                            std::size_t ahead, std::uint32_t* words) const {
  if (count % decoder.multiple != 0) return false;
  decoder.int8(codes(row) + column, absmax(row), count, ahead, words);
  return true;
}

bool Int8Rows::decode_pairs(const PairDecoder& decoder, std::size_t row, Range columns, std::size_t ahead,
                            std::uint32_t* panel, std::size_t group_stride) const {
  if (columns.size % decoder.multiple != 0) return false;
  decoder.int8({codes(row) + columns.first, codes(row + 1) + columns.first, absmax(row), absmax(row + 1), ahead},
               columns.size, panel, group_stride);
  return true;
}

void Int8Rows::prefetch(std::size_t row, std::size_t column, std::size_t count) const {
  for (std::size_t i = 0; i < count; i += line_bytes) prefetch_to_l2(codes(row) + column + i);
}

}  // namespace nibble::matmul
