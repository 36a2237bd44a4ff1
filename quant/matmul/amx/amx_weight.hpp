#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "quant/matmul/amx/amx_kernel.hpp"
#include "quant/matmul/amx/terms.hpp"
#include "quant/matmul/arranged.hpp"
#include "quant/matmul/weight.hpp"

namespace nibble::matmul {

/// Decodes a weight for AMX tiles, one of its terms in bf16 at a time (terms.hpp). rows() and pairs() return false, and
/// write nothing, where the kernel has no decoder: if rows do not start with a block, or sizes are not multiples of
/// what it decodes at a time.
class AmxFourBit {
 public:
  AmxFourBit(const FourBitRows& weight, const AmxKernel& kernel);

  /// How many terms of the weights are multiplied by x of that type, which is not fp32.
  [[nodiscard]] static std::size_t terms(DType x) { return terms_of(x); }
  /// The factors of rows that their terms lack: none.
  [[nodiscard]] static std::vector<float> factors(const FourBitRows& /*weight*/) { return {}; }

  /// A term of weights of a row, without the kernel.
  void numbers(std::size_t row, Range columns, std::size_t term, std::span<std::uint16_t> to) const;

  /// The order along the depth in which rows() writes numbers.
  [[nodiscard]] Arrange arrange() const { return kernel_.rows.arrange_four_bit; }

  /// Has to be called before rows(), which takes rows of these.
  void start_rows(Range rows);
  /// Row r of `rows` is written to to + r * stride. Before each row is decoded, lines_of_row lines are asked for.
  [[nodiscard]] bool rows(Range rows, Range depth, std::size_t term, LinesAhead& ahead, std::size_t lines_of_row,
                          std::uint32_t* to, std::size_t stride) const;

  /// An even number of rows side by side, as AmxOperands::right. Columns lie in one block, or start and end with one.
  /// Half of the lines of rows are asked for meanwhile.
  [[nodiscard]] bool pairs(Range rows, Range columns, std::size_t term, LinesAhead& ahead, std::uint32_t* panel,
                           std::size_t group_stride);

  /// Where the code of a weight is, by its number, and how many bytes so many codes have.
  [[nodiscard]] const void* codes(std::size_t weight) const { return weight_.packed() + weight / 2; }
  [[nodiscard]] static std::size_t bytes(std::size_t weights) { return weights / 2; }

  /// start_rows() makes room for the absmax of its rows, which must not have more blocks than this if they are nested.
  static constexpr std::size_t max_nested_blocks_of_row = 2048;

 private:
  const FourBitRows& weight_;
  const AmxKernel& kernel_;
  std::size_t blocksize_, blocks_of_row_;  // divisions take as long as decoding a block
  bool has_whole_blocks_;
  Range started_{};
  std::vector<float> room_;
  const float* absmax_ = nullptr;  // of started_
};

/// The same for int8 codes, whose order is the usual one. They are exact in bf16, and have one term; absmax is in the
/// factors.
class AmxInt8 {
 public:
  AmxInt8(const Int8Rows& weight, const AmxKernel& kernel) : weight_(weight), kernel_(kernel) {}

  [[nodiscard]] static Arrange arrange() { return nullptr; }
  [[nodiscard]] static std::size_t terms(DType /*x*/) { return 1; }
  /// absmax / 127, or NaN (factor_of_int8_codes()).
  [[nodiscard]] static std::vector<float> factors(const Int8Rows& weight);

  void numbers(std::size_t row, Range columns, std::size_t term, std::span<std::uint16_t> to) const;
  void start_rows(Range /*rows*/) const {}
  [[nodiscard]] bool rows(Range rows, Range depth, std::size_t term, LinesAhead& ahead, std::size_t lines_of_row,
                          std::uint32_t* to, std::size_t stride) const;
  [[nodiscard]] bool pairs(Range rows, Range columns, std::size_t term, LinesAhead& ahead, std::uint32_t* panel,
                           std::size_t group_stride) const;

  [[nodiscard]] const void* codes(std::size_t weight) const { return weight_.codes(0) + weight; }
  [[nodiscard]] static std::size_t bytes(std::size_t weights) { return weights; }

 private:
  const Int8Rows& weight_;
  const AmxKernel& kernel_;
};

}  // namespace nibble::matmul
