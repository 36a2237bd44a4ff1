// One scale for all weights of a tensor, of a row or of a tile: their largest magnitude becomes the largest code. If a
// chunk cannot hold whole regions, all regions are scanned before any weight is encoded.

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "nibble/bf16.hpp"
#include "nibble/fp16.hpp"
#include "quant/codecs/scaled.hpp"
#include "quant/errors/squares.hpp"
#include "quant/quantizers/quantizer.hpp"
#include "quant/quantizers/scanned_magnitude.hpp"
#include "quant/simd/magnitude.hpp"
#include "quant/simd/widen.hpp"

namespace nibble {
namespace {

// What was found in (a part of) a region.
struct Magnitude {
  float absmax = 0;   // of the finite weights
  bool plain = true;  // all are finite
};

Magnitude magnitude_of(DType source, std::span<const std::byte> weights) {
  if (source != DType::f64) {
    const float largest = largest_magnitude(source, weights);
    if (std::isfinite(largest)) return {largest, true};
  }
  Magnitude found;
  for_each_tile(source, weights, [&](std::size_t, std::span<const float> tile) {
    for (const float weight : tile) {
      if (std::isfinite(weight))
        found.absmax = std::max(found.absmax, std::abs(weight));
      else
        found.plain = false;
    }
  });
  return found;
}

// Pieces of a matrix do not depend on how it is cut into chunks: errors are added up piece by piece. A piece of short
// rows has a power of two of them, at most the height of a tile, so that it is never in two bands of tiles.
std::uint64_t rows_per_piece(std::uint64_t columns) {
  return std::min<std::uint64_t>(std::bit_floor(tile_weights / columns), Regions::tile);
}

// The scale of a region whose largest magnitude is absmax, as a number of this type: absmax / largest(), two roundings.
// If that is 0, the machine epsilon of the type, as in compressed-tensors.
float scale_of(const ScaledCodec& codec, float absmax, DType type) {
  const float exact = absmax / codec.largest();
  const float scale = type == DType::bf16  ? bf16::to_float(bf16::from_float(exact))
                      : type == DType::f16 ? fp16::to_float(fp16::from_float(exact))
                                           : exact;
  if (scale != 0) return scale;
  return type == DType::bf16 ? 0x1p-7f : type == DType::f16 ? 0x1p-10f : std::numeric_limits<float>::epsilon();
}

class RegionEncoder final : public Encoder {
 public:
  RegionEncoder(const ScaledCodec& codec, const TensorInfo& tensor, bool scanned, Scratch& scratch)
      : codec_(codec),
        source_(tensor.dtype),
        scale_type_(codec.scale_type(tensor)),
        size_(traits(tensor.dtype).bits / 8),
        columns_(tensor.shape[1]),
        is_empty_(tensor.elements() == 0),
        regions_(codec.granularity(), tensor),
        group_rows_(regions_.height() == 1 && columns_ > 0 && columns_ <= tile_weights ? rows_per_piece(columns_)
                                                                                       : regions_.height()),
        scanned_(scanned),
        scanned_regions_(scanned ? regions_.count() : 0),
        scratch_(scratch) {}

  void scan(std::uint64_t first, std::span<const std::byte> weights) override {
    for_each_run(first, weights, [&](std::uint64_t region, auto run) {
      const Magnitude found = magnitude_of(source_, run);
      scanned_regions_[region].add(found.absmax, found.plain);
    });
  }

  Findings encode(std::uint64_t first, std::span<const std::byte> weights, std::span<std::byte> codes,
                  std::vector<ErrorSums>* errors) override {
    Findings findings;
    Group group;
    for (std::size_t begin = 0; begin < codes.size();) {
      const std::uint64_t at = first + begin;
      const std::size_t end =
          begin + static_cast<std::size_t>(std::min<std::uint64_t>(left_of_group(at), codes.size() - begin));
      const auto of_group = [&](auto bytes, std::size_t size) {
        return bytes.subspan(begin * size, (end - begin) * size);
      };
      look_at(at, of_group(weights, size_), group);
      for_each_piece(at, end - begin, [&](std::uint64_t piece, std::size_t from, std::size_t to) {
        const auto its_weights = of_group(weights, size_).subspan(from * size_, (to - from) * size_);
        const auto its_codes = of_group(codes, 1).subspan(from, to - from);
        encode_piece(piece, its_weights, group, its_codes);
        if (!group.plain) findings.add(count_nonfinite(source_, its_weights, piece));
        if (errors != nullptr) errors->push_back(error_of_piece(piece, its_weights, group, its_codes));
      });
      begin = end;
    }
    return findings;
  }

  EncodingError late_error() const override { return late_; }

  void finish(PlaneSink& sink) override {
    const std::uint64_t count = regions_.count();
    const std::size_t scale_size = traits(scale_type_).bits / 8;
    std::vector<float> piece(std::min<std::uint64_t>(count, 1 << 16));
    std::vector<std::byte> stored(piece.size() * scale_size);
    for (std::uint64_t at = 0; at < count; at += piece.size()) {
      const auto part =
          std::span(piece).first(static_cast<std::size_t>(std::min<std::uint64_t>(count - at, piece.size())));
      read_absmax(at, part);
      late_.absmax.add(part);
      for (float& absmax : part) absmax = scale_of(codec_, absmax, scale_type_);
      const auto its_bytes = std::span(stored).first(part.size() * scale_size);
      narrow_scales(part, scale_type_, its_bytes);
      sink.write(1, its_bytes);
    }
  }

 private:
  // The regions of consecutive bands, as far as they are known.
  struct Group {
    std::uint64_t first = 0;  // region
    std::vector<float> absmax;
    bool plain = true;  // all weights are finite
  };

  // From a weight to the end of its group: a band, or as many rows as a piece has.
  [[nodiscard]] std::uint64_t left_of_group(std::uint64_t at) const {
    return columns_ * (group_rows_ - at / columns_ % group_rows_) - at % columns_;
  }

  template <class F> void for_each_run(std::uint64_t first, std::span<const std::byte> weights, F&& f) const {
    regions_.for_each_run(first, weights.size() / size_, [&](std::uint64_t region, std::size_t begin, std::size_t end) {
      f(region, weights.subspan(begin * size_, (end - begin) * size_));
    });
  }

  // Calls f(first, begin, end) for the pieces of weights [first, first + n).
  template <class F> void for_each_piece(std::uint64_t first, std::size_t n, F&& f) const {
    for (std::size_t begin = 0; begin < n;) {
      const std::uint64_t at = first + begin, column = at % columns_;
      std::uint64_t left = 0;
      if (columns_ <= tile_weights) {
        const std::uint64_t rows = rows_per_piece(columns_);
        left = columns_ * (rows - at / columns_ % rows) - column;
      } else {
        left = std::min<std::uint64_t>(columns_ - column, tile_weights - at % tile_weights);
      }
      const std::size_t end = begin + static_cast<std::size_t>(std::min<std::uint64_t>(left, n - begin));
      f(at, begin, end);
      begin = end;
    }
  }

  // Weights of one group: all of them, unless they have been scanned.
  void look_at(std::uint64_t first, std::span<const std::byte> weights, Group& group) {
    group.first = regions_.first_of_band(first);
    group.absmax.assign(regions_.count_in_bands(first, weights.size() / size_), 0.0f);
    group.plain = true;
    if (scanned_) {
      for (std::size_t i = 0; i < group.absmax.size(); ++i) {
        const ScannedMagnitude& region = scanned_regions_[group.first + i];
        group.absmax[i] = region.absmax();
        group.plain = group.plain && region.is_plain();
      }
      return;
    }
    for_each_run(first, weights, [&](std::uint64_t region, auto run) {
      const Magnitude found = magnitude_of(source_, run);
      float& absmax = group.absmax[region - group.first];
      absmax = std::max(absmax, found.absmax);
      group.plain = group.plain && found.plain;
    });
    scratch_.write(group.first * sizeof(float), std::as_bytes(std::span(group.absmax)));
  }

  void encode_piece(std::uint64_t first, std::span<const std::byte> weights, const Group& group,
                    std::span<std::byte> codes) const {
    for_each_run(first, weights, [&](std::uint64_t region, auto run) {
      const float absmax = group.absmax[region - group.first];
      const float scale = scale_of(codec_, absmax, scale_type_);
      const auto its_codes =
          codes.subspan(static_cast<std::size_t>(run.data() - weights.data()) / size_, run.size() / size_);
      if (group.plain && source_ != DType::f64) return codec_.encode(source_, run, scale, its_codes);
      alignas(64) std::array<float, tile_weights> finite;
      for_each_tile(source_, run, [&](std::size_t i, std::span<const float> tile) {
        std::transform(tile.begin(), tile.end(), finite.begin(),
                       [&](float weight) { return std::isnan(weight) ? 0.0f : std::clamp(weight, -absmax, absmax); });
        codec_.encode(DType::f32, std::as_bytes(std::span(finite).first(tile.size())), scale,
                      its_codes.subspan(i, tile.size()));
      });
    });
  }

  [[nodiscard]] ErrorSums error_of_piece(std::uint64_t first, std::span<const std::byte> weights, const Group& group,
                                         std::span<const std::byte> codes) const {
    alignas(64) std::array<float, tile_weights> tile;
    alignas(64) std::array<float, tile_weights> decoded;
    const ScaledCodec::Decode decode = codec_.decode_of_region();
    regions_.for_each_run(first, codes.size(), [&](std::uint64_t region, std::size_t begin, std::size_t end) {
      decode(codes.subspan(begin, end - begin), scale_of(codec_, group.absmax[region - group.first], scale_type_),
             DType::f32, std::as_writable_bytes(std::span(decoded).subspan(begin, end - begin)));
    });
    return compare_squares(widen(source_, weights, tile), std::span(decoded).first(codes.size()));
  }

  void read_absmax(std::uint64_t first, std::span<float> absmax) const {
    for (std::size_t i = 0; i < absmax.size() && scanned_; ++i) absmax[i] = scanned_regions_[first + i].absmax();
    if (scanned_) return;
    if (is_empty_)  // no chunk has stored any
      std::ranges::fill(absmax, 0.0f);
    else
      scratch_.read(first * sizeof(float), std::as_writable_bytes(absmax));
  }

  const ScaledCodec& codec_;
  DType source_, scale_type_;
  std::size_t size_;  // of a weight, in bytes
  std::uint64_t columns_;
  bool is_empty_;
  Regions regions_;
  std::uint64_t group_rows_;
  bool scanned_;
  std::vector<ScannedMagnitude> scanned_regions_;
  Scratch& scratch_;  // absmax, 4 bytes per region
  EncodingError late_;
};

class AbsmaxOfRegions final : public Quantizer {
 public:
  explicit AbsmaxOfRegions(const ScaledCodec& codec) : codec_(codec) {}

  // Whole bands of regions; if those do not fit, pieces of weights, which are scanned first.
  Chunking chunking(const TensorInfo& tensor, std::uint64_t limit) const override {
    const std::uint64_t columns = std::max<std::uint64_t>(tensor.shape[1], 1);
    const std::uint64_t all = columns * std::max<std::uint64_t>(tensor.shape[0], 1);
    limit = std::max<std::uint64_t>(limit, 1);
    if (all <= limit) return {all, false};
    const std::uint64_t height = Regions(codec_.granularity(), tensor).height();
    const bool fits = columns <= limit / height;
    const std::uint64_t piece = columns <= tile_weights ? rows_per_piece(columns) * columns : tile_weights;
    // A band of tiles is a whole number of pieces.
    const std::uint64_t unit = fits             ? std::max(height * columns, height == 1 && limit >= piece ? piece : 0)
                               : limit >= piece ? piece
                                                : 1;
    return {limit - limit % unit, !fits};
  }

  std::uint64_t scratch_bytes(const TensorInfo& tensor) const override {
    return sizeof(float) * Regions(codec_.granularity(), tensor).count();
  }
  std::uint64_t scan_bytes(const TensorInfo& tensor) const override {
    return scanned_magnitude_bytes * Regions(codec_.granularity(), tensor).count();
  }

  std::unique_ptr<Encoder> encoder(const TensorInfo& tensor, const Chunking& chunking,
                                   Scratch& scratch) const override {
    return std::make_unique<RegionEncoder>(codec_, tensor, chunking.scan, scratch);
  }

 private:
  const ScaledCodec& codec_;
};

}  // namespace

std::unique_ptr<const Quantizer> make_absmax_regions_quantizer(const Codec& codec,
                                                               const QuantizerOptions& /*options*/) {
  const auto* const scaled = dynamic_cast<const ScaledCodec*>(&codec);
  return scaled == nullptr ? nullptr : std::make_unique<AbsmaxOfRegions>(*scaled);
}

}  // namespace nibble
