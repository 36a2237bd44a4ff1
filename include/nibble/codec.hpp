#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "nibble/codec_spec.hpp"
#include "nibble/tensor.hpp"

/// How numbers are coded: arithmetic and sizes. Quantizers choose the scales, and schemes name the result on disk
/// (docs/architecture.md).
namespace nibble {

/// What the numbers of a plane mean.
enum class PlaneRole : std::uint8_t { codes, absmax, nested_absmax, nested_codebook, nested_offset, scale };

[[nodiscard]] std::string_view to_string(PlaneRole role) noexcept;

/// One of the arrays that a codec makes of a tensor.
struct Plane {
  PlaneRole role;
  DType dtype;
  Shape shape;

  [[nodiscard]] std::uint64_t bytes() const { return TensorInfo{{}, dtype, shape}.bytes(); }
  bool operator==(const Plane&) const = default;
};

/// The weights that share an absmax or a scale: a row of a matrix, a block of weights that follow each other, the whole
/// tensor, or a tile, which is a block of rows and columns.
enum class Granularity : std::uint8_t { none, row, block, tensor, tile };

/// "row", "block" or "tensor"; a tile is called "block", too. Not defined for `none`.
[[nodiscard]] std::string_view to_string(Granularity granularity) noexcept;

/// The way from planes back to weights, for one tensor. Thread-safe.
class Decoder {
 public:
  virtual ~Decoder() = default;

  /// Decodes the weights [first, first + out.size()) from the bytes they take among the codes; `first` is a multiple of
  /// step().
  virtual void decode(std::uint64_t first, std::span<const std::byte> codes, std::span<float> out) const = 0;

  /// The same to F32, BF16 or F16, rounded to nearest even. `out` needs no alignment.
  virtual void decode(std::uint64_t first, std::span<const std::byte> codes, DType to, std::span<std::byte> out) const;

  /// A divisor of 4096.
  [[nodiscard]] virtual std::uint64_t step() const noexcept { return 1; }

 private:
  /// Bytes that n weights take among the codes; n as for Codec::code_bytes().
  [[nodiscard]] virtual std::uint64_t code_bytes(std::uint64_t n) const = 0;
};

/// A number format. Immutable and thread-safe; made by make_codec().
class Codec {
 public:
  virtual ~Codec() = default;

  /// The name and options that it was made from.
  [[nodiscard]] const CodecSpec& spec() const noexcept { return spec_; }
  [[nodiscard]] std::string_view name() const { return spec_.name(); }

  /// Whether this codec can store such a tensor. By default any of the weight types, of any shape.
  [[nodiscard]] virtual bool accepts(const TensorInfo& tensor) const { return is_weight_type(tensor.dtype); }

  /// Codes with an absmax or a scale, as opposed to a cast or a copy.
  [[nodiscard]] bool quantizes() const noexcept { return granularity() != Granularity::none; }
  [[nodiscard]] virtual Granularity granularity() const noexcept { return Granularity::none; }

  /// The type of the stored values, for codecs that only cast.
  [[nodiscard]] virtual std::optional<DType> cast_type() const noexcept { return std::nullopt; }

  /// Finite weights beyond the largest value of this type overflow.
  [[nodiscard]] virtual DType range() const noexcept { return cast_type().value_or(DType::f32); }

  /// The value of each code, in units of absmax; empty for codecs without a codebook.
  [[nodiscard]] virtual std::span<const float> codebook() const noexcept { return {}; }

  /// The planes that a tensor becomes; types and shapes follow from its header alone. The first plane has the codes, in
  /// the order of the weights.
  [[nodiscard]] virtual std::vector<Plane> planes(const TensorInfo& tensor) const = 0;

  /// Bytes that the first n weights of a tensor take among the codes. If a weight takes less than a byte, n is a
  /// multiple of 8 or the number of all weights.
  [[nodiscard]] virtual std::uint64_t code_bytes(const TensorInfo& tensor, std::uint64_t n) const = 0;

  /// `rest` holds the bytes of planes()[1...]. Throws Error(bad_input) if they do not fit the tensor.
  [[nodiscard]] virtual std::unique_ptr<Decoder> decoder(const TensorInfo& tensor,
                                                         std::span<const std::span<const std::byte>> rest) const = 0;

  /// The SQNR in dB of independent, normally distributed weights in a tensor of this shape, with which measurements are
  /// compared: infinite if nothing is lost, NaN if it is unknown. Each codec names the source.
  [[nodiscard]] virtual double normal_sqnr_db(const TensorInfo& /*tensor*/) const {
    return std::numeric_limits<double>::quiet_NaN();
  }

 protected:
  explicit Codec(const CodecSpec& spec) : spec_(spec) {}

 private:
  CodecSpec spec_;
};

[[nodiscard]] std::unique_ptr<const Codec> make_codec(const CodecSpec& spec);

}  // namespace nibble
