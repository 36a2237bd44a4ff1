#include "quant/matmul/amx/packed_rows.hpp"

#include <array>
#include <cstring>

#include "quant/simd/transpose.hpp"

namespace nibble::matmul {

static_assert(DepthParts::group % amx_depth == 0 && DepthParts::max_part % DepthParts::group == 0);

void write_words(std::span<const std::uint16_t, DepthParts::max_part> numbers, std::size_t words, Arrange arrange,
                 std::uint32_t* to) {
  if (arrange != nullptr)
    arrange(numbers.data(), 2 * words, to);
  else
    std::memcpy(to, numbers.data(), words * sizeof(*to));
}

PackedRows::PackedRows(const Operands& operands, Side side, Arrange arrange, const DepthParts& depth, Range rows)
    : operands_(operands),
      side_(side),
      arrange_(arrange),
      depth_(depth),
      rows_(rows),
      words_(padded_rows() * depth.words()) {}

void PackedRows::pack(std::size_t part) {
  const std::size_t words = depth_.words_of(part);
  std::array<std::uint32_t, amx_rows * DepthParts::max_words> group;
  for (std::size_t row = 0; row < rows_.size; row += amx_rows) {
    std::uint32_t* const to = at(part) + row * words;
    std::uint32_t* const in_rows = side_ == Side::left ? to : group.data();
    for (std::size_t r = 0; r < amx_rows; ++r) write_row(row + r, part, in_rows + r * words);
    if (side_ == Side::right)
      transpose(reinterpret_cast<const std::byte*>(group.data()), words, amx_rows, words, sizeof(*to),
                reinterpret_cast<std::byte*>(to), amx_words);
  }
}

void PackedRows::write_row(std::size_t row, std::size_t part, std::uint32_t* to) const {
  constexpr std::size_t bytes = sizeof(std::uint16_t);
  std::array<std::uint16_t, DepthParts::max_part> numbers{};
  const Range depth = depth_.of(part);
  if (row < rows_.size)
    std::memcpy(numbers.data(), operands_.x.data() + ((rows_.first + row) * depth_.depth() + depth.first) * bytes,
                depth.size * bytes);
  write_words(numbers, depth_.words_of(part), arrange_, to);
}

}  // namespace nibble::matmul
