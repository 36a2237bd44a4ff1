#include "python/torch/four_bit.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <span>

#include "nibble/codec.hpp"
#include "nibble/nested.hpp"
#include "quant/codecs/four_bit/four_bit.hpp"

namespace nibble::torch_operators {
namespace {

constexpr std::int64_t nested_blocksize = nested::blocksize;
constexpr std::int64_t max_weights = std::int64_t{1} << 56;  // sizes below cannot overflow

[[nodiscard]] std::int64_t divided_up(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

void require_size(std::string_view argument, const Tensor& tensor, std::int64_t expected, std::int64_t weights) {
  require(tensor.numel() == expected, [&] {
    return fmt::format("{}: has {} values, and {} weights need {}", argument, tensor.numel(), weights, expected);
  });
}

}  // namespace

void check_four_bit(const FourBitParts& parts, std::int64_t weights) {
  const std::int64_t blocksize = parts.blocksize;
  require(blocksize >= 32 && blocksize <= 4096 && (blocksize & (blocksize - 1)) == 0,
          [&] { return fmt::format("blocksize: is {}, not one of 32, 64, ..., 4096", blocksize); });
  require(parts.quant_type == "nf4" || parts.quant_type == "fp4",
          [&] { return fmt::format("quant_type: is '{}', not nf4 or fp4", printable(parts.quant_type)); });
  require(weights >= 0 && weights < max_weights,
          [&] { return fmt::format("weight: cannot have {} weights", weights); });

  require(parts.packed.is_contiguous(), [] { return std::string("packed: is not contiguous"); });
  const auto element = static_cast<std::int64_t>(parts.packed.element_size());
  // A storage type of more than one byte may end with bytes that no code needs.
  const std::int64_t bytes = parts.packed.numel() * element, needed = divided_up(weights, 2);
  require(bytes >= needed && bytes < needed + element,
          [&] { return fmt::format("packed: has {} bytes, and {} weights need {}", bytes, weights, needed); });

  const std::int64_t blocks = divided_up(weights, blocksize);
  const bool nested = parts.nested_absmax.has_value();
  require(nested == parts.nested_codebook.has_value() && nested == parts.nested_offset.has_value(), [] {
    return std::string("nested_absmax, nested_quant_map, nested_offset: some are given and some are not");
  });
  require_plane("absmax", parts.absmax, nested ? ScalarType::Byte : ScalarType::Float, parts.packed);
  require_size("absmax", parts.absmax, blocks, weights);
  if (!nested) return;
  require_plane("nested_absmax", *parts.nested_absmax, ScalarType::Float, parts.packed);
  require_size("nested_absmax", *parts.nested_absmax, divided_up(blocks, nested_blocksize), weights);
  require_plane("nested_quant_map", *parts.nested_codebook, ScalarType::Float, parts.packed);
  require_size("nested_quant_map", *parts.nested_codebook, 256, weights);
  require_plane("nested_offset", *parts.nested_offset, ScalarType::Float, parts.packed);
  require_size("nested_offset", *parts.nested_offset, 1, weights);
}

const FourBitTables& four_bit_tables(std::string_view quant_type) {
  static const std::unique_ptr<const Codec> nf4 = make_codec("nf4"), fp4 = make_codec("fp4");
  require(quant_type == "nf4" || quant_type == "fp4",
          [&] { return fmt::format("quant_type: is '{}', not nf4 or fp4", printable(quant_type)); });
  return dynamic_cast<const FourBitCodec&>(quant_type == "nf4" ? *nf4 : *fp4).tables();
}

FourBitRows::FourBitRows(const FourBitParts& parts, std::int64_t rows, std::int64_t columns)
    : tables_(four_bit_tables(parts.quant_type)),
      codebook_(parts.quant_type == "nf4" ? matmul::Codebook::nf4 : matmul::Codebook::fp4),
      rows_(rows),
      columns_(columns),
      blocksize_(parts.blocksize) {
  require(rows >= 0 && columns >= 0 && (columns == 0 || rows <= max_weights / columns),
          [&] { return fmt::format("weight: cannot have the shape [{}, {}]", rows, columns); });
  check_four_bit(parts, rows * columns);
  packed_ = static_cast<const std::uint8_t*>(parts.packed.const_data_ptr());
  if (!parts.nested()) {
    absmax_ = parts.absmax.const_data_ptr<float>();
    return;
  }
  absmax_codes_ = parts.absmax.const_data_ptr<std::uint8_t>();
  nested_absmax_ = parts.nested_absmax->const_data_ptr<float>();
  nested_codebook_ = parts.nested_codebook->const_data_ptr<float>();
  nested_offset_ = *parts.nested_offset->const_data_ptr<float>();
}

matmul::FourBitWeight FourBitRows::for_products() const {
  const std::int64_t weights = rows_ * columns_;
  const auto blocks = static_cast<std::size_t>(divided_up(weights, blocksize_));
  matmul::FourBitWeight weight;
  weight.n = static_cast<std::size_t>(rows_);
  weight.k = static_cast<std::size_t>(columns_);
  weight.codebook = codebook_;
  weight.blocksize = static_cast<std::size_t>(blocksize_);
  weight.packed = {packed_, static_cast<std::size_t>(divided_up(weights, 2))};
  if (absmax_ != nullptr) {
    weight.absmax = {absmax_, blocks};
    return weight;
  }
  weight.absmax_codes = {absmax_codes_, blocks};
  weight.nested_absmax = {nested_absmax_, (blocks + nested::blocksize - 1) / nested::blocksize};
  weight.nested_codebook = {nested_codebook_, 256};
  weight.nested_offset = nested_offset_;
  return weight;
}

void FourBitRows::decode(std::int64_t first, std::int64_t count, DType to, void* out) const {
  constexpr std::size_t max_blocks = 512;  // of one piece: 2 KiB of absmax on the stack
  std::array<float, max_blocks> room;
  const auto blocksize = static_cast<std::size_t>(blocksize_), weights = static_cast<std::size_t>(count);
  const auto first_block = static_cast<std::size_t>(first) / blocksize;
  const std::size_t piece = blocksize * max_blocks;
  for (std::size_t done = 0; done < weights; done += piece) {
    const std::size_t n = std::min(piece, weights - done), blocks = (n + blocksize - 1) / blocksize;
    const std::size_t block = first_block + done / blocksize;
    std::span<const float> absmax(room.data(), blocks);
    if (absmax_ != nullptr) {
      absmax = {absmax_ + block, blocks};
    } else {
      const std::size_t all = static_cast<std::size_t>(divided_up(rows_ * columns_, blocksize_));
      nested::decode_slice(block, {absmax_codes_, all},
                           {nested_absmax_, (all + nested::blocksize - 1) / nested::blocksize},
                           std::span<const float, 256>(nested_codebook_, 256), nested_offset_, {room.data(), blocks});
    }
    const std::span<const std::uint8_t> packed(packed_ + (static_cast<std::size_t>(first) + done) / 2, (n + 1) / 2);
    if (to == DType::f32)
      decode_four_bit(tables_, packed, absmax, blocksize, {static_cast<float*>(out) + done, n});
    else
      decode_four_bit(tables_, packed, absmax, blocksize, to, {static_cast<std::uint16_t*>(out) + done, n});
  }
}

}  // namespace nibble::torch_operators
