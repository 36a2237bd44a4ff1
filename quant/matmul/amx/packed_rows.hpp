#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "quant/matmul/amx/amx_kernel.hpp"
#include "quant/matmul/amx/terms.hpp"
#include "quant/matmul/arranged.hpp"
#include "quant/matmul/lines.hpp"
#include "quant/matmul/operands.hpp"
#include "quant/matmul/range.hpp"

namespace nibble::matmul {

[[nodiscard]] constexpr std::size_t rounded_up(std::size_t n, std::size_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

/// The dimension that is summed over, in parts. The words of a part are those of whole groups of 64 numbers, because
/// decoders arrange so many; the last ones may be 0.
class DepthParts {
 public:
  static constexpr std::size_t max_part = 256, max_words = max_part / 2, group = 64;

  /// Parts of `part` numbers, a multiple of `group` and at most max_part; the last one may be shorter.
  DepthParts(std::size_t depth, std::size_t part) : depth_(depth), part_(part) {}

  [[nodiscard]] std::size_t count() const { return (depth_ + part_ - 1) / part_; }
  [[nodiscard]] Range of(std::size_t i) const { return {i * part_, std::min(part_, depth_ - i * part_)}; }
  [[nodiscard]] std::size_t words_of(std::size_t i) const { return rounded_up(of(i).size, group) / 2; }
  [[nodiscard]] std::size_t words_before(std::size_t i) const { return i * part_ / 2; }
  [[nodiscard]] std::size_t words() const { return rounded_up(depth_, group) / 2; }
  [[nodiscard]] std::size_t depth() const { return depth_; }

 private:
  std::size_t depth_, part_;
};

/// The numbers of a part, with zeros behind them, as `words` words; in the order of `arrange`, unless it is null.
void write_words(std::span<const std::uint16_t, DepthParts::max_part> numbers, std::size_t words, Arrange arrange,
                 std::uint32_t* to);

/// Rows of x in terms of bf16 (terms.hpp), part by part, as operands of AMX tiles.
class PackedRows {
 public:
  enum class Side { left, right };

  /// How rows are packed. Numbers are multiplied by the factors of their places along the depth before, unless there
  /// are none; `arrange` gives the order of numbers along the depth, unless it is null.
  struct Layout {
    Side side;
    DepthParts depth;
    Arrange arrange;
    std::size_t terms;
    std::span<const float> factors;
  };

  PackedRows(const Operands& operands, const Layout& layout, Range rows);

  [[nodiscard]] Range rows() const { return rows_; }
  /// Copies of the last row make them whole tiles.
  [[nodiscard]] std::size_t padded_rows() const { return rounded_up(rows_.size, amx_rows); }

  /// Has to be called for each part before it is read. False if the numbers of a row of the part are so small that
  /// their terms lose bits (least_of_terms); for x in bf16 and fp16, only if there are factors.
  [[nodiscard]] bool pack(std::size_t part);
  /// AmxOperands::left, with as many words from row to row as the part has, or AmxOperands::right.
  [[nodiscard]] const std::uint32_t* of(std::size_t part, std::size_t term) const { return at(part, term); }
  /// All of a part.
  [[nodiscard]] CacheLines lines_of(std::size_t part) const;

 private:
  using Terms = std::array<std::array<std::uint16_t, DepthParts::max_part>, max_terms>;
  [[nodiscard]] bool split(std::size_t row, Range depth, Terms& terms) const;
  [[nodiscard]] std::size_t words_of_term(std::size_t part) const {
    return layout_.depth.words_of(part) * padded_rows();
  }
  [[nodiscard]] std::uint32_t* at(std::size_t part, std::size_t term) const {
    return words_.data() + layout_.terms * layout_.depth.words_before(part) * padded_rows() +
           term * words_of_term(part);
  }

  const Operands& operands_;
  Layout layout_;
  Range rows_;
  Lines<std::uint32_t> words_;
};

}  // namespace nibble::matmul
