#include "quant/matmul/amx/packed_rows.hpp"

#include <algorithm>
#include <cstring>
#include <functional>

#include "quant/simd/magnitude.hpp"
#include "quant/simd/transpose.hpp"
#include "quant/simd/widen.hpp"

namespace nibble::matmul {

static_assert(DepthParts::group % amx_depth == 0 && DepthParts::max_part % DepthParts::group == 0);

namespace {

constexpr std::size_t rows_of_x_ahead = 4;

}  // namespace

void write_words(std::span<const std::uint16_t, DepthParts::max_part> numbers, std::size_t words, Arrange arrange,
                 std::uint32_t* to) {
  if (arrange != nullptr)
    arrange(numbers.data(), 2 * words, to);
  else
    std::memcpy(to, numbers.data(), words * sizeof(*to));
}

PackedRows::PackedRows(const Operands& operands, const Layout& layout, Range rows)
    : operands_(operands), layout_(layout), rows_(rows), words_(layout.terms * padded_rows() * layout.depth.words()) {}

CacheLines PackedRows::lines_of(std::size_t part) const {
  const std::size_t bytes = layout_.terms * words_of_term(part) * sizeof(std::uint32_t);
  return {reinterpret_cast<const std::byte*>(of(part, 0)), bytes / line_bytes};
}

bool PackedRows::pack(std::size_t part) {
  const std::size_t words = layout_.depth.words_of(part);
  const bool is_left = layout_.side == Side::left;
  bool keeps_bits = true;
  Terms terms{};
  std::array<std::uint32_t, max_terms * amx_rows * DepthParts::max_words> group;
  for (std::size_t row = 0; row < rows_.size; row += amx_rows) {
    const auto words_of = [&](std::size_t term) {
      return is_left ? at(part, term) + row * words : group.data() + term * amx_rows * words;
    };
    for (std::size_t r = 0; r < amx_rows; ++r) {
      if (row + r < rows_.size && !split(rows_.first + row + r, layout_.depth.of(part), terms)) keeps_bits = false;
      for (std::size_t term = 0; term < layout_.terms; ++term)
        write_words(terms[term], words, layout_.arrange, words_of(term) + r * words);
    }
    for (std::size_t term = 0; term < layout_.terms && !is_left; ++term)
      transpose(reinterpret_cast<const std::byte*>(words_of(term)), words, amx_rows, words, sizeof(std::uint32_t),
                reinterpret_cast<std::byte*>(at(part, term) + row * words), amx_words);
  }
  return keeps_bits;
}

// Of a row of x, the terms of a part of the depth; false as pack(). The same part of a later row is asked for from
// memory meanwhile: rows are too far apart for the processor's own prefetching.
bool PackedRows::split(std::size_t row, Range depth, Terms& terms) const {
  const std::size_t bytes = traits(operands_.dtype).bits / 8;
  const auto x = operands_.x.subspan((row * layout_.depth.depth() + depth.first) * bytes, depth.size * bytes);
  prefetch({x.data() + rows_of_x_ahead * layout_.depth.depth() * bytes, x.size() / line_bytes});
  if (operands_.dtype == DType::bf16 && layout_.factors.empty()) {
    std::memcpy(terms[0].data(), x.data(), x.size());
    return true;
  }
  std::array<float, DepthParts::max_part> room;
  const std::span<const float> wide = widen(operands_.dtype, x, room);
  const std::span<float> numbers(room.data(), depth.size);
  if (!layout_.factors.empty())
    std::transform(wide.begin(), wide.end(), layout_.factors.begin() + static_cast<std::ptrdiff_t>(depth.first),
                   numbers.begin(), std::multiplies<>());
  else if (wide.data() != numbers.data())
    std::copy(wide.begin(), wide.end(), numbers.begin());
  const bool may_be_small = operands_.dtype == DType::f32 || !layout_.factors.empty();
  const float largest = may_be_small ? largest_magnitude(DType::f32, std::as_bytes(numbers)) : 1;
  for (std::size_t term = 0; term < layout_.terms; ++term) take_term(numbers, std::span(terms[term]).first(depth.size));
  return largest == 0 || !(largest < least_of_terms);
}

}  // namespace nibble::matmul
