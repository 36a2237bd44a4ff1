#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "formats/adapters/adapter.hpp"
#include "formats/adapters/tensor_updates.hpp"
#include "quant/jobs/merge/plain_reader.hpp"
#include "quant/merge/tensor_merge.hpp"

namespace nibble {

/// A base with an adapter merged into it while it is read. Tensors that the adapter changes are fp32.
class MergedReader final : public DerivedReader {
 public:
  /// Throws Error(bad_input) if the adapter is for another base.
  MergedReader(std::unique_ptr<const PlainReader> base, Adapter adapter);

  [[nodiscard]] const TensorList& tensors() const noexcept override { return tensors_; }
  [[nodiscard]] std::size_t file_of(std::size_t tensor) const override { return base_->file_of(tensor); }
  void read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const override;
  [[nodiscard]] const std::optional<ModelConfig>& config() const noexcept override { return base_->config(); }
  void check_unchanged() const override;
  [[nodiscard]] std::uint64_t memory_bytes() const override {
    return base_->memory_bytes() + adapter_.weights().memory_bytes();
  }

  /// Its tensors are those of tensors(), in the same order.
  [[nodiscard]] const Reader& base() const noexcept { return *base_; }
  [[nodiscard]] bool is_updated(std::size_t tensor) const { return find(tensor) != nullptr; }

 private:
  [[nodiscard]] const TensorUpdate* find(std::size_t tensor) const;
  [[nodiscard]] std::uint64_t position(std::size_t tensor, std::uint64_t offset) const override;
  [[nodiscard]] DType model_type(std::size_t tensor) const override {
    return ReaderInternals::model_type(*base_, tensor);
  }
  [[nodiscard]] bool was_quantized() const override { return ReaderInternals::was_quantized(*base_); }
  [[nodiscard]] bool was_tied() const override { return ReaderInternals::was_tied(*base_); }
  [[nodiscard]] std::uint64_t reading_bytes() const override;
  [[nodiscard]] std::string adapter(const FileProgress& progress) const override;
  [[nodiscard]] std::shared_ptr<const TensorMerge> make_merge(std::size_t tensor, const TensorUpdate& update) const;
  void read_base(std::size_t tensor, std::uint64_t first, std::span<float> out) const;

  Adapter adapter_;
  std::unique_ptr<const Reader> base_;
  std::vector<TensorUpdate> updates_;  // sorted by tensor
  TensorList tensors_;
  mutable LastUsed<TensorMerge> merges_;
  mutable ExpertFactors expert_factors_;
};

}  // namespace nibble
