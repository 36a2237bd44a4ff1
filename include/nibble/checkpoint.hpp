#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/tensor_list.hpp"

namespace nibble {

/// What decides which layers a model has.
struct ModelClass {
  std::string architecture;  ///< architectures[0] of config.json
  /// model_type of each part that has one, by its path: "vision_config", "thinker_config.text_config".
  std::map<std::string, std::string> part_types = {};
};

/// The members of config.json that matter here. Strings are empty if the member is missing.
struct ModelConfig : ModelClass {
  std::string model_type;
  std::string dtype;  ///< dtype or torch_dtype, without "torch.": "bfloat16"

  /// tie_word_embeddings of the top level, or else of the language model's part (text_config and its like). If it is
  /// missing, the default is that of the model class, which model_type names: there is no common default.
  std::optional<bool> tie_word_embeddings;

  std::optional<std::uint64_t> vocab_size;  ///< of the language model's part, or else of the top level

  // Empty for plain weights.
  std::string quant_method;         ///< "compressed-tensors", "nibble", ...; bitsandbytes may leave it out
  std::string quantization_config;  ///< its JSON text
  std::string quantization_key;     ///< where it stands: "quantization_config", "text_config.quantization_config"
  std::string second_quantization;  ///< where another one stands, in a part of the model; empty if none does
};

/// A checkpoint that is open for reading: one file, or an index of shards, or a model directory.
/// All headers have been read and checked when a Reader exists; data is read on demand. Thread-safe.
class Reader {
 public:
  virtual ~Reader() = default;

  /// In the order of their data in the files, so that reading them in turn is one sequential pass.
  [[nodiscard]] virtual const TensorList& tensors() const noexcept = 0;

  /// The index into files() of the file that holds a tensor.
  [[nodiscard]] virtual std::size_t file_of(std::size_t tensor) const = 0;

  /// The weight files, as names relative to path() when that is a directory.
  [[nodiscard]] virtual std::span<const std::string> files() const noexcept = 0;

  /// The other files that were read, named in the same way: config.json, and the index of shards.
  [[nodiscard]] virtual std::span<const std::string> other_files() const noexcept { return {}; }

  /// Fills `out` with the bytes of tensor `tensor` from `offset` on. Throws Error(io), or Error(input_changed) if
  /// the file has become shorter.
  virtual void read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const = 0;

  /// The file or directory that was opened, after a model's name was resolved.
  [[nodiscard]] virtual const std::filesystem::path& path() const noexcept = 0;

  /// Whether path() is a directory, so that the output is one too.
  [[nodiscard]] bool is_directory() const { return std::filesystem::is_directory(path()); }

  /// The name of a tensor's file in errors: its path, as it was given.
  [[nodiscard]] std::string label_of(std::size_t tensor) const;

  /// Nothing for single files, and for directories without config.json.
  [[nodiscard]] virtual const std::optional<ModelConfig>& config() const noexcept = 0;

  /// Throws Error(input_changed) if size, modification time or inode of a file differ from when it was opened.
  virtual void check_unchanged() const = 0;

  /// For memory estimates: about how many bytes it keeps as long as it is open.
  [[nodiscard]] virtual std::uint64_t memory_bytes() const { return 0; }

 protected:
  friend struct ReaderInternals;
  using FileProgress = std::function<void(std::string_view file, std::uint64_t done, std::uint64_t total)>;

 private:
  [[nodiscard]] virtual std::uint64_t position(std::size_t /*tensor*/, std::uint64_t offset) const { return offset; }
  [[nodiscard]] virtual std::uint64_t rewrite_bytes() const { return 0; }
  [[nodiscard]] virtual DType model_type(std::size_t tensor) const { return tensors().dtype(tensor); }
  [[nodiscard]] virtual bool was_quantized() const { return false; }
  [[nodiscard]] virtual bool was_tied() const { return false; }
  [[nodiscard]] virtual std::uint64_t reading_bytes() const { return 0; }
  [[nodiscard]] virtual std::string adapter(const FileProgress& /*progress*/) const { return {}; }
};

struct OpenOptions {
  /// Also accept what no conversion takes as input: checkpoints in the formats of bitsandbytes, including those that
  /// only nibble loads. Otherwise they are refused.
  bool accept_quantized = false;

  /// In bytes, for the whole program: opening takes no more, whatever the headers, the index and config.json contain.
  /// An ordinary header takes less memory than its size, the worst known header six times its size.
  std::uint64_t max_memory = 1'000'000'000;
};

/// Opens a file (.safetensors), a model directory, an index file, or `org/model` from the local hub cache
/// (HF_HUB_CACHE, HF_HOME/hub, ~/.cache/huggingface/hub).
///
/// Throws Error(bad_input) naming file, tensor, fact and limit; Error(io) if the system refuses; Error(no_space) if it
/// takes more than max_memory. Duplicate names, holes, overlaps, headers over 100,000,000 bytes, more than 64
/// dimensions, JSON deeper than 128 and paths that leave the directory are refused.
///
/// A model may have any number of shards: only some of the files are open at a time, at most a sixteenth of what the
/// process may have open (RLIMIT_NOFILE). A file that is opened again has to be the same as before; otherwise reading
/// it throws Error(input_changed).
[[nodiscard]] std::unique_ptr<Reader> open_checkpoint(const std::filesystem::path& path,
                                                      const OpenOptions& options = {});

/// A container that can be read, for lists of them.
struct ContainerTraits {
  std::string_view name;
  std::string_view summary;
  std::string_view extension;  ///< of its files: ".safetensors"
  bool writes = false;
};
[[nodiscard]] std::span<const ContainerTraits> containers();

}  // namespace nibble
