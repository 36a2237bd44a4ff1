#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "core/memory/buffers.hpp"
#include "core/memory/last_used.hpp"
#include "formats/checkpoint.hpp"
#include "nibble/checkpoint.hpp"
#include "nibble/plan.hpp"
#include "quant/stream/source.hpp"
#include "quant/stream/stored_weights.hpp"

namespace nibble {

/// A Reader over another one that shares its files.
class DerivedReader : public Reader {
 public:
  explicit DerivedReader(const Reader& from) : from_(from) {}
  [[nodiscard]] std::span<const std::string> files() const noexcept override { return from_.files(); }
  [[nodiscard]] std::span<const std::string> other_files() const noexcept override { return from_.other_files(); }
  [[nodiscard]] const std::filesystem::path& path() const noexcept override { return from_.path(); }
  void check_unchanged() const override { from_.check_unchanged(); }

 protected:
  [[nodiscard]] std::uint64_t rewrite_bytes() const override { return ReaderInternals::rewrite_bytes(from_); }
  const Reader& from_;
};

/// Any checkpoint as the plain weights of its model, with the names and shapes that they have there: codes are decoded
/// to fp32 while they are read.
class PlainReader final : public DerivedReader {
 public:
  /// `in` is opened with Intake::any.
  explicit PlainReader(std::unique_ptr<const Reader> in);

  [[nodiscard]] const TensorList& tensors() const noexcept override { return plan_.tensors.infos(); }
  [[nodiscard]] std::size_t file_of(std::size_t tensor) const override {
    return in_->file_of(plan_.tensors[tensor].source);
  }
  void read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const override;
  [[nodiscard]] const std::optional<ModelConfig>& config() const noexcept override { return config_; }
  [[nodiscard]] std::uint64_t memory_bytes() const override { return in_->memory_bytes() + stored_.memory_bytes(); }

  [[nodiscard]] const ModelClass& model() const noexcept { return plan_.model; }
  [[nodiscard]] bool is_tied() const noexcept { return plan_.tied; }

 private:
  [[nodiscard]] std::uint64_t position(std::size_t tensor, std::uint64_t offset) const override;
  [[nodiscard]] DType model_type(std::size_t tensor) const override;
  [[nodiscard]] bool was_quantized() const override { return stored_.is_declared(); }
  [[nodiscard]] std::uint64_t reading_bytes() const override;
  [[nodiscard]] static bool is_as_stored(const PlannedTensor& tensor);

  std::unique_ptr<const Reader> in_;
  StoredWeights stored_;
  Plan plan_;  // that changes nothing but decodes
  std::optional<ModelConfig> config_;
  mutable Buffers buffers_;
  mutable LastUsed<WeightSource> sources_;
};

}  // namespace nibble
