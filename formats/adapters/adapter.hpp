#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/xxh3.hpp"
#include "formats/adapters/adapter_config.hpp"
#include "formats/adapters/adapter_names.hpp"
#include "nibble/checkpoint.hpp"

namespace nibble {

/// A LoRA adapter as peft saves it: a directory with adapter_config.json and adapter_model.safetensors (or an index of
/// shards of that name). Headers are read; data is read on demand. Thread-safe.
class Adapter {
 public:
  /// Throws Error(bad_input) for a directory of something else, a setting that cannot be merged, and a tensor that peft
  /// does not save; Error(no_space) if reading adapter_config.json or the headers takes more than `max_memory`;
  /// Error(io).
  explicit Adapter(const std::filesystem::path& directory, std::uint64_t max_memory = OpenOptions().max_memory);

  /// The same from its parts, for tests.
  Adapter(std::string_view config, std::unique_ptr<Reader> weights);

  [[nodiscard]] const AdapterConfig& config() const noexcept { return config_; }
  /// Of the text of adapter_config.json.
  [[nodiscard]] std::uint64_t config_bytes() const noexcept { return config_bytes_; }
  [[nodiscard]] const Xxh3& config_hash() const noexcept { return config_hash_; }
  /// The directory; empty if it was made from parts.
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  /// Its tensors.
  [[nodiscard]] const Reader& weights() const noexcept { return *weights_; }

  /// The tensors of one low-rank update, by their number in weights().
  struct LowRank {
    std::optional<std::size_t> a, b, b_bias, magnitude;
    bool embedding = false;
  };
  /// What was trained of one module.
  struct Module {
    std::map<std::size_t, LowRank> low_rank;  ///< by AdapterName::depth
    std::optional<std::size_t> tokens;
  };
  /// By name; of a module with low-rank updates each has A and B.
  [[nodiscard]] const std::map<std::string, Module>& modules() const noexcept { return modules_; }
  /// Tensors that replace those of the base: name in the model, and number in weights().
  [[nodiscard]] const std::map<std::string, std::size_t>& replacements() const noexcept { return replacements_; }

 private:
  struct Parts {
    std::string config;
    std::unique_ptr<Reader> weights;
  };
  Adapter(std::filesystem::path path, std::string_view label, Parts parts);
  void add(std::size_t tensor);
  void leave_to_base(const std::string& quantized_weight);
  void check_complete() const;
  [[noreturn]] void refuse_tensor(std::size_t tensor, std::string_view fact) const;

  std::filesystem::path path_;
  std::uint64_t config_bytes_;
  Xxh3 config_hash_;
  AdapterConfig config_;
  std::unique_ptr<Reader> weights_;
  std::map<std::string, Module> modules_;
  std::map<std::string, std::size_t> replacements_;
  std::set<std::string> quantized_;  // weights that are saved as codes
};

}  // namespace nibble
