#pragma once

#include <cstddef>

#include "nibble/matmul.hpp"
#include "nibble/nested.hpp"
#include "quant/codecs/nested_table.hpp"
#include "quant/matmul/range.hpp"

namespace nibble {
struct FourBitTables;
}

namespace nibble::matmul {

struct PairDecoder;
struct RowDecoder;

/// A weight [n, k], whatever it is stored as.
class Weight {
 public:
  virtual ~Weight() = default;

  /// W[row][column], ..., W[row][column + count - 1]. Thread-safe.
  virtual void decode(std::size_t row, std::size_t column, std::size_t count, float* out) const = 0;

  /// The same in words; false, and nothing is written, if the decoder cannot decode that part. count <= max_part. The
  /// codes `ahead` weights later are asked for from memory.
  [[nodiscard]] virtual bool decode_words(const RowDecoder& decoder, std::size_t row, std::size_t column,
                                          std::size_t count, std::size_t ahead, std::uint32_t* words) const = 0;

  /// Asks for the codes of that part from memory; it may lie past the end of the weight.
  virtual void prefetch(std::size_t row, std::size_t column, std::size_t count) const = 0;

  static constexpr std::size_t max_part = 512;

  /// W[row][column + c] and W[row + 1][column + c] as words of a panel, in which groups are group_stride
  /// words apart; false as above.
  [[nodiscard]] virtual bool decode_pairs(const PairDecoder& decoder, std::size_t row, Range columns, std::size_t ahead,
                                          std::uint32_t* panel, std::size_t group_stride) const = 0;

  [[nodiscard]] std::size_t n() const noexcept { return n_; }
  [[nodiscard]] std::size_t k() const noexcept { return k_; }

 protected:
  Weight(std::size_t n, std::size_t k) : n_(n), k_(k) {}

 private:
  std::size_t n_, k_;
};

class FourBitRows final : public Weight {
 public:
  /// Throws Error(usage) if a size disagrees.
  explicit FourBitRows(const FourBitWeight& weight);

  void decode(std::size_t row, std::size_t column, std::size_t count, float* out) const override;
  [[nodiscard]] bool decode_words(const RowDecoder& decoder, std::size_t row, std::size_t column, std::size_t count,
                                  std::size_t ahead, std::uint32_t* words) const override;

  [[nodiscard]] bool decode_pairs(const PairDecoder& decoder, std::size_t row, Range columns, std::size_t ahead,
                                  std::uint32_t* panel, std::size_t group_stride) const override;
  void prefetch(std::size_t row, std::size_t column, std::size_t count) const override;

  /// The absmax of blocks [first, first + count): where they are, or written to `room`.
  std::span<const float> absmax(std::size_t first, std::size_t count, std::span<float> room) const;

  /// The absmax of one block. For a few blocks, it takes less time than the function above.
  [[nodiscard]] float absmax(std::size_t block) const noexcept {
    if (!has_nested_absmax()) return weight_.absmax[block];
    const float scaled =
        weight_.nested_codebook[weight_.absmax_codes[block]] * weight_.nested_absmax[block / nested::blocksize];
    return scaled + weight_.nested_offset;
  }

  [[nodiscard]] bool has_nested_absmax() const noexcept { return !weight_.absmax_codes.empty(); }
  [[nodiscard]] bool rows_have_whole_blocks() const noexcept { return k() % weight_.blocksize == 0; }
  [[nodiscard]] std::size_t blocksize() const noexcept { return weight_.blocksize; }
  [[nodiscard]] const FourBitTables& tables() const noexcept { return tables_; }
  [[nodiscard]] const std::uint8_t* packed() const noexcept { return weight_.packed.data(); }

 private:
  // Writes the absmax of weights [first, first + count), up to max_part of them, and returns how many share one; 0 if
  // the part does not start and end with a block, or lie within one.
  std::size_t absmax_of_part(std::size_t first, std::size_t count, std::size_t ahead, float* out) const;

  FourBitWeight weight_;
  const FourBitTables& tables_;
  nested::Table nested_table_;
};

class Int8Rows final : public Weight {
 public:
  /// Throws Error(usage) if a size disagrees.
  explicit Int8Rows(const Int8Weight& weight);

  void decode(std::size_t row, std::size_t column, std::size_t count, float* out) const override;
  [[nodiscard]] bool decode_words(const RowDecoder& decoder, std::size_t row, std::size_t column, std::size_t count,
                                  std::size_t ahead, std::uint32_t* words) const override;

  [[nodiscard]] bool decode_pairs(const PairDecoder& decoder, std::size_t row, Range columns, std::size_t ahead,
                                  std::uint32_t* panel, std::size_t group_stride) const override;
  void prefetch(std::size_t row, std::size_t column, std::size_t count) const override;

  [[nodiscard]] float absmax(std::size_t row) const noexcept { return weight_.absmax[row]; }
  [[nodiscard]] const std::int8_t* codes(std::size_t row) const noexcept { return weight_.codes.data() + row * k(); }

 private:
  Int8Weight weight_;
};

}  // namespace nibble::matmul
