#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "formats/adapters/tied_output.hpp"
#include "quant/jobs/merge/plain_reader.hpp"

namespace nibble {

/// A model whose output layer shares the weight of its embeddings, as one whose output layer has a tensor of its own:
/// the one that is stored, or a copy of the embeddings.
class UntiedReader final : public DerivedReader {
 public:
  UntiedReader(std::unique_ptr<const Reader> tied, const TiedOutput& output);

  [[nodiscard]] const TensorList& tensors() const noexcept override { return tensors_; }
  [[nodiscard]] std::size_t file_of(std::size_t tensor) const override { return tied_->file_of(source(tensor)); }
  void read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const override {
    tied_->read(source(tensor), offset, out);
  }
  [[nodiscard]] const std::optional<ModelConfig>& config() const noexcept override { return config_; }
  [[nodiscard]] std::uint64_t memory_bytes() const override { return tied_->memory_bytes() + tensors_.memory_bytes(); }

 private:
  // The copy stands behind the tensor that it is a copy of, so the order is still that of the data in the files.
  [[nodiscard]] std::size_t source(std::size_t tensor) const noexcept { return tensor < copy_ ? tensor : tensor - 1; }
  [[nodiscard]] std::uint64_t position(std::size_t tensor, std::uint64_t offset) const override {
    return ReaderInternals::position(*tied_, source(tensor), offset);
  }
  [[nodiscard]] DType model_type(std::size_t tensor) const override {
    return ReaderInternals::model_type(*tied_, source(tensor));
  }
  [[nodiscard]] bool was_quantized() const override { return ReaderInternals::was_quantized(*tied_); }
  [[nodiscard]] bool was_tied() const override { return true; }
  [[nodiscard]] std::uint64_t reading_bytes() const override { return ReaderInternals::reading_bytes(*tied_); }

  std::unique_ptr<const Reader> tied_;
  TensorList tensors_;
  std::size_t copy_;  // its number
  std::optional<ModelConfig> config_;
};

}  // namespace nibble
