// The absmax of every row of a matrix. A row that is longer than a chunk is scanned before any of it is encoded.

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "nibble/fp16.hpp"
#include "nibble/int8.hpp"
#include "quant/codecs/int8_rows.hpp"
#include "quant/errors/int8_error.hpp"
#include "quant/errors/squares.hpp"
#include "quant/quantizers/device.hpp"
#include "quant/quantizers/quantizer.hpp"
#include "quant/quantizers/scanned_magnitude.hpp"
#include "quant/quantizers/search/row_search.hpp"
#include "quant/simd/widen.hpp"

namespace nibble {
namespace {

class RowEncoder final : public Encoder {
 public:
  RowEncoder(Device* device, bool searches, const TensorInfo& tensor, bool scanned, Scratch& scratch)
      : source_(tensor.dtype),
        size_(traits(tensor.dtype).bits / 8),
        columns_(tensor.shape[1]),
        row_count_(tensor.shape[0]),
        searches_(searches),
        scanned_(scanned),
        scanned_rows_(scanned ? tensor.shape[0] : 0),
        device_(device),
        scratch_(scratch) {}

  void weigh(ColumnWeights&& columns) override { column_weights_ = std::move(columns); }

  void scan(std::uint64_t first, std::span<const std::byte> weights) override {
    int8::for_each_row(
        columns_, first, weights.size() / size_, [&](std::size_t row, std::size_t begin, std::size_t end) {
          bool plain = true;
          const float absmax = int8::row_absmax(source_, weights.subspan(begin * size_, (end - begin) * size_), plain);
          scanned_rows_[row].add(absmax, plain);
        });
  }

  Findings encode(std::uint64_t first, std::span<const std::byte> weights, std::span<std::byte> codes,
                  std::vector<ErrorSums>* errors) override {
    Findings findings;
    if (encode_on_device(first, weights, codes, errors)) return findings;
    Rows rows;
    // Piece by piece, so that weights are still in the cache when they are read again.
    for_each_piece(first, weights, codes, [&](std::uint64_t at, auto piece, auto its_codes) {
      if (scanned_)
        recall(at, its_codes.size(), rows);
      else if (at % columns_ == 0)
        look_at(at, weights.subspan((at - first) * size_, std::max(its_codes.size(), columns_) * size_), rows);
      findings.add(encode_piece(at, piece, rows, its_codes));
      if (errors != nullptr) errors->push_back(error_of_piece(at, piece, rows.absmax, its_codes));
    });
    return findings;
  }

  EncodingError late_error() const override { return late_; }

  void finish(PlaneSink& sink) override {
    for (std::size_t row = 0; row < scanned_rows_.size(); ++row) {
      const float absmax = scanned_rows_[row].absmax();
      store(row, {&absmax, 1});
    }
    std::vector<std::byte> piece(std::min<std::uint64_t>(absmax_bytes(), 1 << 18));
    for (std::uint64_t at = 0; at < absmax_bytes(); at += piece.size()) {
      // Without a column no chunk has stored a row: all are zeros.
      const auto part = std::span(piece).first(std::min<std::uint64_t>(absmax_bytes() - at, piece.size()));
      if (columns_ != 0) scratch_.read(at, part);
      for (std::size_t i = 0; i < part.size(); i += sizeof(float)) {
        float absmax = 0;
        std::memcpy(&absmax, part.data() + i, sizeof absmax);
        late_.absmax.add(absmax);
      }
      sink.write(1, part);
    }
  }

 private:
  // The rows that a piece touches, as far as they are known.
  struct Rows {
    std::vector<float> absmax;
    bool plain = true;  // fp16 can hold all their weights
  };

  // Calls f(first, weights, codes) for the pieces of a chunk.
  template <class F>
  void for_each_piece(std::uint64_t first, std::span<const std::byte> weights, std::span<std::byte> out, F&& f) const {
    int8::for_each_piece(columns_, first, out.size(), [&](std::uint64_t at, std::size_t begin, std::size_t count) {
      f(at, weights.subspan(begin * size_, count * size_),
        std::span(reinterpret_cast<std::int8_t*>(out.data() + begin), count));
    });
  }

  // Whole rows, which begin at weight `at`.
  void look_at(std::uint64_t at, std::span<const std::byte> weights, Rows& rows) {
    rows.plain = true;
    rows.absmax.clear();
    for (std::size_t begin = 0; begin < weights.size(); begin += columns_ * size_) {
      const auto row = weights.subspan(begin, columns_ * size_);
      bool plain = true;
      const float largest = int8::row_absmax(source_, row, plain);
      rows.absmax.push_back(searches_ && plain ? search_row(source_, row, largest, column_weights_) : largest);
      rows.plain = rows.plain && plain;
    }
    store(at / columns_, rows.absmax);
  }

  // What scan() has found of the rows of n weights from `at`.
  void recall(std::uint64_t at, std::size_t n, Rows& rows) const {
    rows.plain = true;
    rows.absmax.clear();
    int8::for_each_row(columns_, at, n, [&](std::size_t row, std::size_t, std::size_t) {
      rows.absmax.push_back(scanned_rows_[row].absmax());
      rows.plain = rows.plain && scanned_rows_[row].is_plain();
    });
  }

  Findings encode_piece(std::uint64_t first, std::span<const std::byte> weights, const Rows& rows,
                        std::span<std::int8_t> codes) const {
    int8::for_each_row(columns_, first, codes.size(), [&](std::size_t row, std::size_t begin, std::size_t end) {
      int8::encode_row(source_, weights.subspan(begin * size_, (end - begin) * size_),
                       rows.absmax[row - first / columns_], rows.plain, codes.subspan(begin, end - begin));
    });
    return rows.plain ? Findings() : count_nonfinite(source_, weights, first, fp16::smallest_overflow);
  }

  [[nodiscard]] ErrorSums error_of_piece(std::uint64_t first, std::span<const std::byte> weights,
                                         std::span<const float> absmax, std::span<const std::int8_t> codes) const {
    return int8::error_of_rows(source_, weights, codes, columns_, columns_ - first % columns_, absmax);
  }

  // Whole rows. If some are not finite, or beyond fp16, the CPU counts what is in them.
  bool encode_on_device(std::uint64_t first, std::span<const std::byte> weights, std::span<std::byte> out,
                        std::vector<ErrorSums>* errors) {
    if (device_ == nullptr || searches_ || scanned_ || out.empty()) return false;
    std::vector<float> absmax(out.size() / columns_);
    if (!DeviceEncoder(*device_).encode_int8(source_, weights, {reinterpret_cast<std::int8_t*>(out.data()), out.size()},
                                             absmax))
      return false;
    store(first / columns_, absmax);
    if (errors != nullptr)
      for_each_piece(first, weights, out, [&](std::uint64_t at, auto piece, auto codes) {
        errors->push_back(
            error_of_piece(at, piece, std::span(absmax).subspan(at / columns_ - first / columns_), codes));
      });
    return true;
  }

  void store(std::uint64_t first_row, std::span<const float> absmax) {
    scratch_.write(first_row * sizeof(float), std::as_bytes(absmax));
  }

  [[nodiscard]] std::uint64_t absmax_bytes() const { return sizeof(float) * row_count_; }

  DType source_;
  std::size_t size_;  // of a weight, in bytes
  std::uint64_t columns_;
  ColumnWeights column_weights_;
  std::uint64_t row_count_;
  bool searches_;
  bool scanned_;
  std::vector<ScannedMagnitude>
      scanned_rows_;  // only for rows that are scanned first, which are longer than a chunk, so few
  Device* device_;
  Scratch& scratch_;  // absmax, 4 bytes per row
  EncodingError late_;
};

class AbsmaxOfRows final : public Quantizer {
 public:
  AbsmaxOfRows(const Int8Codec& codec, const QuantizerOptions& options)
      : searches_(codec.searches()), device_(options.device) {}

  // Whole rows, or parts of rows that are scanned first. A search needs whole rows.
  Chunking chunking(const TensorInfo& tensor, std::uint64_t limit) const override {
    const std::uint64_t columns = std::max<std::uint64_t>(tensor.shape[1], 1);
    limit = std::max<std::uint64_t>(limit, 1);
    if (limit > tile_weights) limit -= limit % tile_weights;  // pieces of errors are not cut
    if (columns > limit) return searches_ ? Chunking{columns, false} : Chunking{limit, true};
    std::uint64_t rows = std::min(limit / columns, max_rows);
    if (const std::uint64_t unit = tile_weights / columns; unit > 0 && rows > unit) rows -= rows % unit;
    return {rows * columns, false};
  }

  std::uint64_t scratch_bytes(const TensorInfo& tensor) const override { return sizeof(float) * tensor.shape.at(0); }

  std::uint64_t scan_bytes(const TensorInfo& tensor) const override {
    return searches_ ? 0 : scanned_magnitude_bytes * tensor.shape.at(0);
  }

  bool uses_device(const TensorInfo& tensor) const override { return !searches_ && DeviceEncoder::takes(tensor.dtype); }

  std::unique_ptr<Encoder> encoder(const TensorInfo& tensor, const Chunking& chunking,
                                   Scratch& scratch) const override {
    return std::make_unique<RowEncoder>(device_, searches_, tensor, chunking.scan, scratch);
  }

 private:
  // The rows in a chunk are limited, because a device returns the absmax of all of them at once, 4 bytes each.
  static constexpr std::uint64_t max_rows = 4096;

  bool searches_;
  Device* device_;
};

}  // namespace

std::unique_ptr<const Quantizer> make_absmax_rows_quantizer(const Codec& codec, const QuantizerOptions& options) {
  const auto* const int8 = dynamic_cast<const Int8Codec*>(&codec);
  return int8 == nullptr ? nullptr : std::make_unique<AbsmaxOfRows>(*int8, options);
}

}  // namespace nibble
