#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "nibble/checkpoint.hpp"
#include "nibble/tensor.hpp"

/// The weights of a checkpoint as numbers, however they are stored: as F64, F32, BF16 or F16, or quantized in any way
/// that nibble knows.
namespace nibble {

/// The weights of one tensor in fp32, row-major.
struct Weights {
  Shape shape;
  std::vector<float> values;
};

/// Finds and reads the tensors of a checkpoint as they were before they were quantized. Thread-safe; `reader` must
/// outlive it.
class WeightReader {
 public:
  /// Looks at headers and quantization states only. Throws Error(bad_input) if parts of a tensor are missing or
  /// contradict each other.
  explicit WeightReader(const Reader& reader);
  WeightReader(const WeightReader&) = delete;
  WeightReader& operator=(const WeightReader&) = delete;
  WeightReader(WeightReader&&) noexcept;
  WeightReader& operator=(WeightReader&&) noexcept;
  ~WeightReader();

  [[nodiscard]] std::size_t size() const noexcept;

  /// Name and shape of a tensor, and the type that its weights had.
  [[nodiscard]] TensorInfo operator[](std::size_t tensor) const;

  [[nodiscard]] std::optional<std::size_t> find(std::string_view name) const;

  /// Writes all weights of a tensor to `out`, whose size is their number. F64 is rounded to nearest even. Decodes on
  /// the threads of the caller's oneTBB arena. Throws Error(usage) if the tensor is not of a weight type or `out` has
  /// another size, Error(bad_input) or Error(io) if it cannot be read.
  void read(std::size_t tensor, std::span<float> out) const;

 private:
  friend Weights weights(const Reader& reader, std::string_view name);
  struct State;
  std::unique_ptr<State> state_;
};

/// The weights of the tensor of this name. To read many tensors, keep a WeightReader: each call here looks at all
/// headers again. Throws as WeightReader does, and Error(usage) if there is no such tensor.
[[nodiscard]] Weights weights(const Reader& reader, std::string_view name);

}  // namespace nibble
