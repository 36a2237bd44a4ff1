#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "nibble/codec.hpp"
#include "quant/codecs/absmax_choice.hpp"
#include "quant/simd/widen.hpp"

namespace nibble {

/// A matrix in 8 bits with an absmax for each row.
class Int8Codec final : public Codec {
 public:
  explicit Int8Codec(const CodecSpec& spec) : Codec(spec), searches_(absmax_choice_of(spec) != AbsmaxChoice::max) {}

  /// Whether the absmax of a row is searched; codes have either sign, so it is positive in any case.
  [[nodiscard]] bool searches() const noexcept { return searches_; }

  bool accepts(const TensorInfo& tensor) const override {
    return is_weight_type(tensor.dtype) && tensor.shape.size() == 2;
  }
  Granularity granularity() const noexcept override { return Granularity::row; }
  DType range() const noexcept override { return DType::f16; }
  std::vector<Plane> planes(const TensorInfo& tensor) const override {
    return {{PlaneRole::codes, DType::i8, tensor.shape}, {PlaneRole::absmax, DType::f32, {tensor.shape.at(0)}}};
  }
  std::uint64_t code_bytes(const TensorInfo&, std::uint64_t n) const override { return n; }
  std::unique_ptr<Decoder> decoder(const TensorInfo& tensor,
                                   std::span<const std::span<const std::byte>> rest) const override;
  double normal_sqnr_db(const TensorInfo& tensor) const override;

 private:
  bool searches_;
};

}  // namespace nibble

namespace nibble::int8 {

/// Calls f(row, begin, end) for the rows that weights [first, first + n) touch, with offsets from `first`.
template <class F> void for_each_row(std::uint64_t columns, std::uint64_t first, std::size_t n, F&& f) {
  for (std::size_t begin = 0; begin < n;) {
    const std::uint64_t at = first + begin;
    const std::size_t end =
        begin + static_cast<std::size_t>(std::min<std::uint64_t>(columns - at % columns, n - begin));
    f(static_cast<std::size_t>(at / columns), begin, end);
    begin = end;
  }
}

/// Calls f(first, begin, n) for pieces of weights [first, first + count), each of `begin` weights further on: up to
/// 4096 weights in whole rows, or as many of a longer row. They are cut at the same weights wherever `first` is, if
/// that is the first weight of a piece.
template <class F> void for_each_piece(std::uint64_t columns, std::uint64_t first, std::size_t count, F&& f) {
  for (std::size_t begin = 0; begin < count;) {
    const std::uint64_t rows = tile_weights / columns;
    const std::uint64_t at = first + begin, left_of_row = columns - at % columns;
    const std::uint64_t piece = rows > 0 ? left_of_row + (rows - 1 - at / columns % rows) * columns
                                         : std::min<std::uint64_t>(left_of_row, tile_weights - at % tile_weights);
    const std::size_t n = static_cast<std::size_t>(std::min<std::uint64_t>(piece, count - begin));
    f(at, begin, n);
    begin += n;
  }
}

/// The finite weight that is encoded in place of any weight of a row with this absmax: as encode_row() says.
[[nodiscard]] float repaired(float weight, float absmax);

}  // namespace nibble::int8
