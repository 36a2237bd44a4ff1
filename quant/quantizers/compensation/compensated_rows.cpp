#include "quant/quantizers/compensation/compensated_rows.hpp"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "nibble/fp16.hpp"
#include "nibble/int8.hpp"
#include "quant/errors/int8_error.hpp"
#include "quant/errors/squares.hpp"
#include "quant/quantizers/column_weights.hpp"
#include "quant/quantizers/compensation/compensation.hpp"
#include "quant/quantizers/search/row_search.hpp"
#include "quant/simd/widen.hpp"

namespace nibble {
namespace {

ColumnWeights weights_of(const InputFactor& factor) {
  std::vector<float> importance(factor.columns());
  for (std::size_t j = 0; j < importance.size(); ++j) importance[factor.order()[j]] = factor.importance()[j];
  return ColumnWeights(std::move(importance));
}

class CompensatedRowEncoder final : public Encoder {
 public:
  CompensatedRowEncoder(bool searches, const InputFactor& factor, const TensorInfo& tensor, Scratch& scratch)
      : factor_(factor),
        column_weights_(searches ? weights_of(factor) : ColumnWeights()),
        source_(tensor.dtype),
        size_(traits(tensor.dtype).bits / 8),
        columns_(factor.columns()),
        absmax_bytes_(sizeof(float) * tensor.shape.at(0)),
        scratch_(scratch) {
    assert(tensor.shape.size() == 2 && tensor.shape[1] == columns_);
  }

  Findings encode(std::uint64_t first, std::span<const std::byte> weights, std::span<std::byte> out,
                  std::vector<ErrorSums>* errors) override {
    const std::span codes(reinterpret_cast<std::int8_t*>(out.data()), out.size());
    std::vector<float> finite(codes.size()), absmax(codes.size() / columns_);
    bool plain = true;
    for (std::size_t row = 0; row < absmax.size(); ++row)
      absmax[row] = widen_row(weights.subspan(row * columns_ * size_, columns_ * size_),
                              std::span(finite).subspan(row * columns_, columns_), plain);
    compensate_int8(factor_, first / columns_, finite, absmax, codes);
    scratch_.write(first / columns_ * sizeof(float), std::as_bytes(std::span(absmax)));
    if (errors != nullptr)
      int8::for_each_piece(columns_, first, codes.size(), [&](std::uint64_t at, std::size_t begin, std::size_t n) {
        errors->push_back(int8::error_of_rows(source_, weights.subspan(begin * size_, n * size_),
                                              codes.subspan(begin, n), columns_, columns_ - at % columns_,
                                              std::span(absmax).subspan(begin / columns_)));
      });
    return plain ? Findings() : count_nonfinite(source_, weights, first, fp16::smallest_overflow);
  }

  EncodingError late_error() const override { return late_; }

  void finish(PlaneSink& sink) override {
    scratch_.for_each_piece(0, absmax_bytes_, [&](std::span<const std::byte> bytes) {
      std::vector<float> absmax(bytes.size() / sizeof(float));
      std::memcpy(absmax.data(), bytes.data(), bytes.size());
      late_.absmax.add(absmax);
      sink.write(1, bytes);
    });
  }

 private:
  // Returns the absmax. Clears `plain` if a weight had to be replaced.
  float widen_row(std::span<const std::byte> weights, std::span<float> to, bool& plain) const {
    bool is_plain = true;
    const float largest = int8::row_absmax(source_, weights, is_plain);
    for_each_tile(source_, weights, [&](std::size_t i, std::span<const float> tile) {
      std::transform(tile.begin(), tile.end(), to.begin() + static_cast<std::ptrdiff_t>(i),
                     [&](float weight) { return is_plain ? weight : int8::repaired(weight, largest); });
    });
    plain = plain && is_plain;
    return is_plain && !column_weights_.empty() ? search_row(source_, weights, largest, column_weights_) : largest;
  }

  const InputFactor& factor_;
  ColumnWeights column_weights_;  // of a search; empty if there is none
  DType source_;
  std::size_t size_;  // of a weight, in bytes
  std::uint64_t columns_, absmax_bytes_;
  Scratch& scratch_;  // the absmax of each row
  EncodingError late_;
};

class CompensatedRows final : public Quantizer {
 public:
  CompensatedRows(const Int8Codec& codec, const InputFactor* factor) : searches_(codec.searches()), factor_(factor) {}

  // Whole groups of rows, and whole pieces of errors.
  Chunking chunking(const TensorInfo& tensor, std::uint64_t limit) const override {
    const std::uint64_t columns = tensor.shape.at(1), rows = columns > tile_weights ? 1 : tile_weights / columns;
    const std::uint64_t unit = std::lcm<std::uint64_t>(rows, row_group::rows) * columns;
    return {std::max(limit - limit % unit, unit), false};
  }

  std::uint64_t scratch_bytes(const TensorInfo& tensor) const override { return sizeof(float) * tensor.shape.at(0); }

  std::unique_ptr<Encoder> encoder(const TensorInfo& tensor, const Chunking&, Scratch& scratch) const override {
    assert(factor_ != nullptr);
    return std::make_unique<CompensatedRowEncoder>(searches_, *factor_, tensor, scratch);
  }

 private:
  bool searches_;
  const InputFactor* factor_;
};

}  // namespace

std::unique_ptr<const Quantizer> make_compensated_rows_quantizer(const Int8Codec& codec, const InputFactor* factor) {
  return std::make_unique<CompensatedRows>(codec, factor);
}

}  // namespace nibble
