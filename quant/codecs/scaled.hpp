#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "nibble/codec.hpp"

namespace nibble {

/// How a matrix is cut into regions that share a scale: all of it, its rows, or tiles.
class Regions {
 public:
  static constexpr std::uint64_t tile = 128;  ///< rows and columns of a tile; the last ones may have fewer

  Regions(Granularity granularity, const TensorInfo& tensor) : rows_(tensor.shape.at(0)), columns_(tensor.shape.at(1)) {
    const auto cut = [](std::uint64_t length, std::uint64_t by) { return length / by + (length % by != 0 ? 1 : 0); };
    height_ = granularity == Granularity::tile  ? tile
              : granularity == Granularity::row ? 1
                                                : std::max<std::uint64_t>(rows_, 1);
    width_ = granularity == Granularity::tile ? tile : std::max<std::uint64_t>(columns_, 1);
    bands_ = granularity == Granularity::tensor ? 1 : cut(rows_, height_);
    per_band_ = granularity == Granularity::tile ? cut(columns_, width_) : 1;
  }

  /// Rows and columns of a region; the last ones may have fewer.
  [[nodiscard]] std::uint64_t height() const noexcept { return height_; }
  [[nodiscard]] std::uint64_t width() const noexcept { return width_; }

  /// Regions in a column of them, and in a row.
  [[nodiscard]] std::uint64_t bands() const noexcept { return bands_; }
  [[nodiscard]] std::uint64_t per_band() const noexcept { return per_band_; }
  [[nodiscard]] std::uint64_t count() const noexcept { return bands_ * per_band_; }

  /// The first region of the band that has weight `weight` of the matrix.
  [[nodiscard]] std::uint64_t first_of_band(std::uint64_t weight) const noexcept {
    return weight / columns_ / height_ * per_band_;
  }

  /// All regions of the bands that weights [first, first + n) touch, n > 0.
  [[nodiscard]] std::uint64_t count_in_bands(std::uint64_t first, std::uint64_t n) const noexcept {
    return first_of_band(first + n - 1) + per_band_ - first_of_band(first);
  }

  /// Calls f(region, begin, end) for runs of weights [first, first + n) in one region, with offsets from `first`.
  template <class F> void for_each_run(std::uint64_t first, std::size_t n, F&& f) const {
    for (std::size_t begin = 0; begin < n;) {
      const std::uint64_t at = first + begin, row = at / columns_, column = at % columns_;
      // A region as wide as the matrix has whole rows.
      const std::uint64_t left = width_ >= columns_ ? columns_ * (height_ - row % height_) - column
                                                    : std::min(width_ - column % width_, columns_ - column);
      const std::size_t end = begin + static_cast<std::size_t>(std::min<std::uint64_t>(left, n - begin));
      f(row / height_ * per_band_ + column / width_, begin, end);
      begin = end;
    }
  }

 private:
  std::uint64_t rows_, columns_, height_ = 0, width_ = 0, bands_ = 0, per_band_ = 0;
};

/// A matrix with a code of 8 bits for each weight, and a scale for each region of it: weight = code * scale.
class ScaledCodec : public Codec {
 public:
  using Codec::Codec;

  bool accepts(const TensorInfo& tensor) const override {
    return is_weight_type(tensor.dtype) && tensor.shape.size() == 2;
  }
  /// The scales are [1], [rows, 1], or a matrix with a number for each tile.
  std::vector<Plane> planes(const TensorInfo& tensor) const override;
  std::uint64_t code_bytes(const TensorInfo&, std::uint64_t n) const override { return n; }
  /// Scales may also be F32 if the tensor has 16 bits, because other tools store them like this.
  std::unique_ptr<Decoder> decoder(const TensorInfo& tensor,
                                   std::span<const std::span<const std::byte>> rest) const override;

  /// The type of the scales of a tensor: its own, but F32 for F64.
  [[nodiscard]] static DType scale_type(const TensorInfo& tensor) {
    return tensor.dtype == DType::f64 ? DType::f32 : tensor.dtype;
  }

  [[nodiscard]] virtual DType code_type() const noexcept = 0;

  /// The largest magnitude of a code.
  [[nodiscard]] virtual float largest() const noexcept = 0;

  /// The codes of finite weights of type F32, BF16 or F16, which may be larger than scale * largest().
  virtual void encode(DType source, std::span<const std::byte> weights, float scale,
                      std::span<std::byte> codes) const = 0;

  /// Decodes weights of one region to F32, BF16 or F16, which are aligned for their type: code * scale in fp32, rounded
  /// once more to 16 bits. A function, because decoders may outlive their codec.
  using Decode = void (*)(std::span<const std::byte> codes, float scale, DType to, std::span<std::byte> weights);
  [[nodiscard]] virtual Decode decode_of_region() const noexcept = 0;
};

/// Scales as they are stored, F32, BF16 or F16, and back. Throws Error(usage) for other types.
void narrow_scales(std::span<const float> scales, DType type, std::span<std::byte> stored);
[[nodiscard]] std::vector<float> widen_scales(std::span<const std::byte> stored, DType type);

}  // namespace nibble
