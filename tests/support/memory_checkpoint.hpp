#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "formats/commit/writer.hpp"
#include "nibble/checkpoint.hpp"

namespace nibble::test {

/// A checkpoint without files, for tests of what lies between reading and writing.
class MemoryReader final : public Reader {
 public:
  /// Appends a tensor of the given bytes; `file` is the shard it pretends to lie in.
  void add(TensorInfo info, std::vector<std::byte> bytes, std::size_t file = 0);

  /// Appends a tensor of normal weights, rounded to its type by truncation of fp32 (F32, BF16) or zeros (others).
  void add_normal(const std::string& name, DType dtype, Shape shape, std::size_t file = 0);

  void set_architecture(std::string architecture, std::optional<bool> tied = {}) {
    config_.emplace();
    config_->architecture = std::move(architecture);
    config_->tie_word_embeddings = tied;
  }
  void set_part_types(std::map<std::string, std::string> types) {
    (config_ ? *config_ : config_.emplace()).part_types = std::move(types);
  }
  void set_dtype(std::string dtype) { (config_ ? *config_ : config_.emplace()).dtype = std::move(dtype); }
  void set_rewrite_bytes(std::uint64_t bytes) { rewrite_bytes_ = bytes; }
  void set_quant_method(std::string method, std::string quantization_config = "{}") {
    ModelConfig& config = config_ ? *config_ : config_.emplace();
    config.quant_method = std::move(method);
    config.quantization_config = std::move(quantization_config);
  }
  [[nodiscard]] std::vector<std::byte>& bytes(std::size_t tensor) { return bytes_[tensor]; }
  [[nodiscard]] std::uint64_t largest_read() const { return *largest_read_; }
  [[nodiscard]] std::uint64_t reads() const { return *reads_; }
  [[nodiscard]] std::uint64_t bytes_read() const { return *bytes_read_; }

  [[nodiscard]] const TensorList& tensors() const noexcept override { return tensors_; }
  [[nodiscard]] std::size_t file_of(std::size_t tensor) const override { return file_[tensor]; }
  [[nodiscard]] std::span<const std::string> files() const noexcept override { return files_; }
  void read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const override;
  [[nodiscard]] const std::filesystem::path& path() const noexcept override { return path_; }
  [[nodiscard]] const std::optional<ModelConfig>& config() const noexcept override { return config_; }
  void check_unchanged() const override {}

 private:
  [[nodiscard]] std::uint64_t rewrite_bytes() const override { return rewrite_bytes_; }

  TensorList tensors_;
  std::vector<std::vector<std::byte>> bytes_;
  std::vector<std::size_t> file_;
  std::vector<std::string> files_;
  std::filesystem::path path_ = "/";  // a directory, so that the output may have shards
  std::optional<ModelConfig> config_;
  std::uint64_t rewrite_bytes_ = 0;
  std::mt19937 generator_{1};
  std::unique_ptr<std::atomic<std::uint64_t>> largest_read_ = std::make_unique<std::atomic<std::uint64_t>>(0);
  std::unique_ptr<std::atomic<std::uint64_t>> bytes_read_ = std::make_unique<std::atomic<std::uint64_t>>(0);
  std::unique_ptr<std::atomic<std::uint64_t>> reads_ = std::make_unique<std::atomic<std::uint64_t>>(0);
};

/// Keeps what is written, by name.
class MemoryWriter final : public Writer {
 public:
  void begin(std::size_t index, const PartList& parts) override;
  void write(std::size_t part, std::uint64_t offset, std::span<const std::byte> bytes) override;
  void end() override;
  [[nodiscard]] std::string shard_name(std::size_t index) const override { return "shard" + std::to_string(index); }
  void write_manifest(std::uint64_t offset, std::string_view text) override {
    manifest_.resize(offset);
    manifest_ += text;
  }
  std::unique_ptr<Scratch> make_scratch() override;
  void complete(const Finish& finish) override { finish_ = finish; }
  void commit() override { committed_ = true; }

  /// Parts of all shards that were ended, as they were when they ended.
  [[nodiscard]] const std::map<std::string, std::vector<std::byte>>& parts() const { return ended_; }
  [[nodiscard]] const std::optional<Finish>& finish() const { return finish_; }
  [[nodiscard]] const std::string& manifest() const { return manifest_; }
  [[nodiscard]] bool is_committed() const { return committed_; }
  [[nodiscard]] std::size_t begun() const { return begun_; }
  /// How often a tensor's scratch did not fit into memory.
  [[nodiscard]] std::size_t scratches() const { return scratches_; }

 private:
  std::vector<TensorInfo> infos_;
  std::vector<std::vector<std::byte>> current_;
  std::map<std::string, std::vector<std::byte>> ended_;
  std::optional<Finish> finish_;
  std::string manifest_;
  bool committed_ = false;
  std::size_t begun_ = 0;
  std::size_t scratches_ = 0;
};

}  // namespace nibble::test
