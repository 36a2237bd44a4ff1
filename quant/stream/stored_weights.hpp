#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "nibble/buffers.hpp"
#include "nibble/checkpoint.hpp"
#include "nibble/codec.hpp"
#include "nibble/error.hpp"
#include "nibble/recipe.hpp"
#include "quant/schemes/scheme.hpp"

namespace nibble {

/// Calls f(); what it throws is said to be about a checkpoint, of which several are open.
template <class F> auto about(const Reader& checkpoint, F&& f) {
  try {
    return f();
  } catch (const Error& error) {
    throw about(error, checkpoint.path().string());
  }
}

/// A checkpoint as the weights it stands for: the parts that a scheme made of a tensor are one tensor again.
/// Thread-safe.
class StoredWeights {
 public:
  /// Throws Error(bad_input) if parts of a tensor are missing or contradict each other.
  explicit StoredWeights(const Reader& in);

  [[nodiscard]] const Reader& reader() const noexcept { return in_; }
  [[nodiscard]] std::size_t size() const noexcept { return tensors_.size(); }

  struct Tensor {
    const Scheme* scheme = nullptr;  ///< that stored it; null for plain tensors
    StoredTensor stored;             ///< its codec is "keep" for plain tensors
    std::uint64_t bytes = 0;         ///< of all parts
    [[nodiscard]] bool quantized() const noexcept { return scheme != nullptr; }
  };
  [[nodiscard]] Tensor operator[](std::size_t tensor) const;
  [[nodiscard]] std::optional<std::size_t> find(std::string_view name) const;

 private:
  [[nodiscard]] std::optional<std::size_t> find_part(std::string_view name) const;

  const Reader& in_;
  std::vector<std::uint32_t> by_name_;  // indices of Reader::tensors(), sorted by name
  struct Row {
    std::uint32_t part;
    std::uint32_t scheme;  // index into schemes(), or none
  };
  std::vector<Row> tensors_;                   // in the order of the files
  std::vector<std::uint32_t> tensor_of_part_;  // or none
  static constexpr std::uint32_t none = UINT32_MAX;
};

/// The weights of one tensor, to be read in any order. Thread-safe; what it was made from has to outlive it.
class WeightSource {
 public:
  using Read = std::function<void(std::uint64_t offset, std::span<std::byte> out)>;

  /// The weights of `tensor`, stored as the codes of `codec`. Of a codec that quantizes, `rest` holds the other planes.
  /// `position` is where the codes begin in their file: buffers are placed by it.
  WeightSource(TensorInfo tensor, std::unique_ptr<const Codec> codec, std::span<const std::span<const std::byte>> rest,
               Read read, std::uint64_t position = 0);

  /// Whether stored() has fp64 numbers.
  [[nodiscard]] bool is_fp64() const noexcept { return plain_ == DType::f64; }

  /// Bytes that weights [first, first + n) take; `first` a multiple of 4096.
  [[nodiscard]] std::uint64_t bytes(std::uint64_t first, std::uint64_t n) const {
    return offset(first + n) - offset(first);
  }
  [[nodiscard]] std::uint64_t position(std::uint64_t first) const { return position_ + offset(first); }
  void read(std::uint64_t first, std::span<std::byte> raw) const {
    if (!raw.empty()) read_(offset(first), raw);
  }

  /// Where they are in memory, if they are: read() is not needed then.
  void set_memory(std::span<const std::byte> codes) { memory_ = codes; }
  [[nodiscard]] bool is_in_memory() const noexcept { return !memory_.empty(); }
  [[nodiscard]] std::span<const std::byte> memory(std::uint64_t first, std::uint64_t n) const {
    return memory_.subspan(offset(first), bytes(first, n));
  }

  /// The weights [at, at + n) as fp32, n at most 4096, out of the bytes of those from `first` on. In `tile`, or where
  /// they are if they are fp32.
  [[nodiscard]] std::span<const float> decode(std::uint64_t first, std::span<const std::byte> raw, std::uint64_t at,
                                              std::size_t n, std::span<float> tile) const;

  /// The bytes of those weights, as stored.
  [[nodiscard]] std::span<const std::byte> stored(std::uint64_t first, std::span<const std::byte> raw, std::uint64_t at,
                                                  std::size_t n) const {
    return raw.subspan(offset(at) - offset(first), bytes(at, n));
  }

 private:
  // Where weight `weight` begins among the codes.
  [[nodiscard]] std::uint64_t offset(std::uint64_t weight) const { return codec_->code_bytes(info_, weight); }

  TensorInfo info_;
  std::unique_ptr<const Codec> codec_;
  std::optional<DType> plain_;  // the type of the codes where they are the weights
  std::unique_ptr<const Decoder> decoder_;
  Read read_;
  std::uint64_t position_;
  std::span<const std::byte> memory_;
};

/// The weights of a tensor of a checkpoint.
[[nodiscard]] WeightSource open_weights(const StoredWeights& in, const StoredWeights::Tensor& tensor);

/// The weights of a plain tensor as a plan sees them: a slice of it, transposed, or all.
[[nodiscard]] WeightSource open_weights(const Reader& in, const PlannedTensor& tensor, Buffers& buffers);

/// Fills `out` with the bytes of a planned tensor from `offset` on, as if it lay in a file by itself.
void read_planned(const Reader& in, const PlannedTensor& tensor, std::uint64_t offset, std::span<std::byte> out,
                  Buffers& buffers);

}  // namespace nibble
