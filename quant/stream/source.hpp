#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "core/memory/buffers.hpp"
#include "nibble/codec.hpp"
#include "nibble/plan.hpp"
#include "quant/stream/stored_weights.hpp"

namespace nibble {

/// The weights of one tensor, which can be read in any order: as they are stored, or as weights of info().dtype.
/// Thread-safe; the objects it was made from have to outlive it.
class WeightSource {
 public:
  using Read = std::function<void(std::uint64_t offset, std::span<std::byte> out)>;

  /// The weights of `tensor`, stored as the codes of `codec`. If the codec quantizes, `rest` holds the other planes.
  /// `position` is the file offset of the codes: the addresses of buffers depend on it.
  WeightSource(TensorInfo tensor, std::unique_ptr<const Codec> codec, std::span<const std::span<const std::byte>> rest,
               Read read, Buffers& buffers, std::uint64_t position = 0);

  /// The weights of `tensor` as a plan sees them: a slice of it, transposed, or all. Codes are decoded to the type that
  /// the view has, other weights keep theirs.
  WeightSource(WeightSource tensor, const PlannedTensor& view);

  /// Name and shape of what is read, and the type of weights().
  [[nodiscard]] const TensorInfo& info() const noexcept { return info_; }
  /// Whether a codec that quantizes made what is stored.
  [[nodiscard]] bool is_decoded() const noexcept { return decoder_ != nullptr; }
  /// Whether read() has to gather the weights from all over the tensor.
  [[nodiscard]] bool is_gathered() const noexcept { return transposed_; }
  /// Whether stored() has fp64 numbers.
  [[nodiscard]] bool is_fp64() const noexcept { return is_plain_ && info_.dtype == DType::f64; }

  // ---- as stored: the codes, or weights if a view requires decoding

  /// Bytes that weights [first, first + n) take; `first` a multiple of 4096.
  [[nodiscard]] std::uint64_t bytes(std::uint64_t first, std::uint64_t n) const {
    return offset(first + n) - offset(first);
  }
  [[nodiscard]] std::uint64_t position(std::uint64_t first) const { return position_ + offset(first); }
  void read(std::uint64_t first, std::span<std::byte> raw) const;

  /// Their address, if they are in memory: then nothing is read.
  void set_memory(std::span<const std::byte> codes) { memory_ = codes; }

  /// Those bytes: in memory if they are there, or else read into `loan`.
  [[nodiscard]] std::span<const std::byte> raw(std::uint64_t first, std::uint64_t n, Buffers::Loan& loan) const;

  /// The weights [at, at + n) as fp32, n at most 4096, out of the bytes of those from `first` on. In `tile`, or where
  /// they are if they are fp32.
  [[nodiscard]] std::span<const float> decode(std::uint64_t first, std::span<const std::byte> raw, std::uint64_t at,
                                              std::size_t n, std::span<float> tile) const;

  /// The bytes of those weights, as stored.
  [[nodiscard]] std::span<const std::byte> stored(std::uint64_t first, std::span<const std::byte> raw, std::uint64_t at,
                                                  std::size_t n) const {
    return raw.subspan(offset(at) - offset(first), bytes(at, n));
  }

  // ---- as weights

  /// Weights [first, first + n) of any tensor, as info().dtype stores them: in memory if they are there, or else read
  /// (and decoded, if they are codes) into `loan`. For types that are not weights, the elements.
  [[nodiscard]] std::span<const std::byte> weights(std::uint64_t first, std::uint64_t n, Buffers::Loan& loan) const;

  /// Reading transposed weights takes a buffer of so many bytes, or of a weight for each row that is asked for.
  static constexpr std::uint64_t transposed_bytes = 256 << 10;

 private:
  // Where weight `weight` begins in what read() gives.
  [[nodiscard]] std::uint64_t offset(std::uint64_t weight) const {
    return is_plain_ ? byte_count(info_.dtype, weight) : codec_->code_bytes(info_, weight);
  }
  // Reads a contiguous range of the whole tensor.
  void read_tensor(std::uint64_t first, std::span<std::byte> out) const;
  void decode_tensor(std::uint64_t first, std::span<std::byte> out) const;
  void read_transposed(std::uint64_t first, std::span<std::byte> out) const;

  TensorInfo info_;
  TensorInfo tensor_;  // of which it is a view
  std::unique_ptr<const Codec> codec_;
  std::unique_ptr<const Decoder> decoder_;  // null if weights are stored, not codes
  bool is_plain_;                           // read() gives weights
  Read read_;
  Buffers* buffers_;
  std::uint64_t position_;
  std::uint64_t begin_ = 0;  // the first of a slice, in the tensor
  bool transposed_ = false;
  std::span<const std::byte> memory_{};
};

/// The weights of a tensor of a checkpoint.
[[nodiscard]] WeightSource open_source(const StoredWeights& in, const StoredWeights::Tensor& tensor, Buffers& buffers);

/// The same as a plan sees them, put together if they are stored in slices.
[[nodiscard]] WeightSource open_source(const StoredWeights& in, const PlannedTensor& tensor, Buffers& buffers);

}  // namespace nibble
