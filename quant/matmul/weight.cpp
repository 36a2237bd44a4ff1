#include "quant/matmul/weight.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <memory>

#include "nibble/codec.hpp"
#include "nibble/error.hpp"
#include "nibble/int8.hpp"
#include "nibble/nested.hpp"
#include "quant/codecs/four_bit/four_bit.hpp"
#include "quant/matmul/row_kernel.hpp"

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
}

std::span<const float> FourBitRows::absmax(std::size_t first, std::size_t count, std::span<float> room) const {
  if (weight_.absmax_codes.empty()) return weight_.absmax.subspan(first, count);
  const std::span<const float, 256> codebook(weight_.nested_codebook);
  for (std::size_t done = 0; done < count;) {
    const std::size_t at = first + done, part = std::min(count - done, nested::blocksize - at % nested::blocksize);
    nested::decode(weight_.absmax_codes.subspan(at, part), weight_.nested_absmax.subspan(at / nested::blocksize, 1),
                   codebook, weight_.nested_offset, room.subspan(done, part));
    done += part;
  }
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

bool FourBitRows::decode_words(const RowKernel& kernel, std::size_t row, std::size_t column, std::size_t count,
                               std::uint32_t* words) const {
  std::array<float, 512 / min_blocksize> room;
  const std::size_t blocksize = weight_.blocksize, at = row * k() + column;
  if (at % blocksize != 0 || count % blocksize != 0) return false;
  kernel.decode_four_bit(tables_, packed() + at / 2, absmax(at / blocksize, count / blocksize, room).data(), blocksize,
                         count, 0, words);
  return true;
}

Int8Rows::Int8Rows(const Int8Weight& weight) : Weight(weight.n, weight.k), weight_(weight) {
  check_size("codes", weight.codes.size(), weights_of(weight.n, weight.k), weight.n, weight.k);
  check_size("absmax", weight.absmax.size(), weight.n, weight.n, weight.k);
}

void Int8Rows::decode(std::size_t row, std::size_t column, std::size_t count, float* out) const {
  int8::decode_row({codes(row) + column, count}, absmax(row), {out, count});
}

bool Int8Rows::decode_words(const RowKernel& kernel, std::size_t row, std::size_t column, std::size_t count,
                            std::uint32_t* words) const {
  if (count % 32 != 0) return false;
  kernel.decode_int8(codes(row) + column, absmax(row), count, 0, words);
  return true;
}

}  // namespace nibble::matmul
