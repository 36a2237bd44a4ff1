#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <memory_resource>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/buffers.hpp"
#include "nibble/huge_pages.hpp"
#include "nibble/scratch.hpp"
#include "nibble/tensor_list.hpp"

namespace nibble {

/// The members of config.json that matter here. Strings are empty if the member is missing.
struct ModelConfig {
  std::string architecture;  ///< architectures[0]
  std::string model_type;
  std::string dtype;  ///< dtype or torch_dtype, without "torch.": "bfloat16"

  /// tie_word_embeddings of the top level, or else of the language model's part (text_config and its like). If it is
  /// missing, the default is that of the model class, which model_type names: there is no common default.
  std::optional<bool> tie_word_embeddings;

  // Empty for plain weights.
  std::string quant_method;         ///< "compressed-tensors", "bitsandbytes", "nibble", ...
  std::string quantization_config;  ///< its JSON text
  std::string quantization_key;     ///< where it stands: "quantization_config", "text_config.quantization_config"

  std::uint64_t rewrite_bytes = 0;  ///< memory that a conversion needs to write config.json anew
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

  /// Fills `out` with the bytes of tensor `tensor` from `offset` on. Throws Error(io), or Error(input_changed) if
  /// the file has become shorter.
  virtual void read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const = 0;

  /// The file offset of those bytes; the addresses of buffers depend on it.
  [[nodiscard]] virtual std::uint64_t position(std::size_t /*tensor*/, std::uint64_t offset) const { return offset; }

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

  /// About how many bytes it keeps in memory as long as it is open.
  [[nodiscard]] virtual std::uint64_t memory_bytes() const { return 0; }
};

struct OpenOptions {
  /// Also accept what no conversion takes as input: checkpoints of bitsandbytes and those that only nibble loads.
  /// Otherwise they are refused.
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

/// The parts of a shard, by number. Each part is made when it is asked for: the 600,000 parts of a model of 100,000
/// tensors in NF4 would take 100 MB.
class PartList {
 public:
  /// A name in two pieces, valid as long as the list.
  struct Name {
    std::string_view stem, rest;
  };

  virtual ~PartList() = default;
  [[nodiscard]] virtual std::size_t size() const noexcept = 0;
  [[nodiscard]] virtual Name name(std::size_t part) const noexcept = 0;
  [[nodiscard]] virtual DType dtype(std::size_t part) const noexcept = 0;
  [[nodiscard]] virtual TensorInfo operator[](std::size_t part) const = 0;
};

/// The tensors of a list as they are.
class PlainParts final : public PartList {
 public:
  explicit PlainParts(const TensorList& tensors) : tensors_(tensors) {}
  [[nodiscard]] std::size_t size() const noexcept override { return tensors_.size(); }
  [[nodiscard]] Name name(std::size_t part) const noexcept override { return {tensors_.name(part), {}}; }
  [[nodiscard]] DType dtype(std::size_t part) const noexcept override { return tensors_.dtype(part); }
  [[nodiscard]] TensorInfo operator[](std::size_t part) const override { return tensors_[part]; }

 private:
  const TensorList& tensors_;
};

/// What a Writer needs, besides the tensors, to complete a checkpoint. None of it contains paths or times, so equal
/// inputs and options give equal bytes.
struct Finish {
  std::string quantization_config;      ///< JSON object for config.json, or empty
  std::string dtype;                    ///< "float16": for config.json's dtype and torch_dtype; or empty
  std::vector<const PartList*> shards;  ///< as they were given to begin(), for the index: one for each shard
};

/// A checkpoint on its way to disk: nothing appears under its name until commit(), and what was not committed is
/// undone by the destructor. write() and lend() are thread-safe; write_manifest() and make_scratch() may be called
/// while others write; the rest may not.
class Writer {
  HugePages huge_pages_;

 public:
  /// Buffers from lend() come from `memory`, or from huge pages if it is null.
  explicit Writer(std::pmr::memory_resource* memory = nullptr) : buffers_(memory == nullptr ? &huge_pages_ : memory) {}
  virtual ~Writer() = default;

  /// Starts shard `index`, or starts it again. Writes its header and reserves its space: Error(no_space) is thrown
  /// here, not later. The parts are laid out in the order of the safetensors library, whatever order is given.
  virtual void begin(std::size_t index, const PartList& parts) = 0;

  /// Bytes of a part of the current shard, from `offset` on.
  virtual void write(std::size_t part, std::uint64_t offset, std::span<const std::byte> bytes) = 0;

  /// A buffer for bytes of a part, at an address that suits their offset in the file. Thread-safe.
  [[nodiscard]] virtual Buffers::Loan lend(std::size_t /*part*/, std::uint64_t offset, std::size_t size) {
    return buffers_.lend(size, offset);
  }

  /// The same as write() with a buffer from lend(), which is kept until the disk has taken its bytes: up to
  /// `max_behind` of them at a time, then this waits. If writing fails later, a later call throws, at the latest end().
  /// For one thread at a time; bytes that continue the previous ones cost least.
  virtual void write_behind(std::size_t part, std::uint64_t offset, Buffers::Loan bytes) {
    write(part, offset, bytes.bytes());
  }
  static constexpr std::size_t max_behind = 8;

  /// Shorter writes are faster through the page cache: each would be a disk request of its own.
  static constexpr std::size_t min_behind_bytes = 64 << 10;

  /// Ends the current shard and flushes its bytes to the disk.
  virtual void end() = 0;

  /// The name of a shard in the output.
  [[nodiscard]] virtual std::string shard_name(std::size_t index) const = 0;

  /// Makes `text` the text of nibble.json from its byte `offset` on; what was there before ends there.
  virtual void write_manifest(std::uint64_t offset, std::string_view text) = 0;

  /// Space for data that does not fit into memory: an unnamed file beside the output, which the Scratch removes.
  [[nodiscard]] virtual std::unique_ptr<Scratch> make_scratch() = 0;

  /// Writes the index, the configuration and all copied files, and flushes everything: only the rename is left.
  virtual void complete(const Finish& finish) = 0;

  /// Makes the output appear, all at once. If this throws, whatever was there before is there unchanged.
  virtual void commit() = 0;

  /// Warnings for the user so far, one line each: files that are not carried over, remains of an earlier run.
  [[nodiscard]] virtual std::vector<std::string> warnings() const { return {}; }

  /// A line about old files that commit() replaced but could not remove; usually empty.
  [[nodiscard]] virtual std::string remains() const { return {}; }

 protected:
  Buffers buffers_;
};

struct CreateOptions {
  std::size_t shards = 1;
  std::uint64_t bytes = 0;  ///< of all shards together; compared with the free space before anything is written
  bool overwrite = false;   ///< replace an output that exists; it stays whole until the new one is complete
  std::pmr::memory_resource* memory = nullptr;  ///< of batches on their way; must outlive the writer. Null: huge pages
};

/// A writer for `path`: a file if the source is a file, a directory if it is one. For a directory, everything that is
/// not a weight is carried over from the source.
///
/// Throws Error(output_exists) if path exists or another process is writing it, Error(usage) if it is the input or
/// contains it, Error(no_space), Error(io).
[[nodiscard]] std::unique_ptr<Writer> create_checkpoint(const std::filesystem::path& path, const Reader& source,
                                                        const CreateOptions& options);

/// Throws what create_checkpoint() would, as far as that is known without writing anything: a dry run fails like the
/// run itself.
void check_output(const std::filesystem::path& path, const Reader& source, const CreateOptions& options);

/// A container that can be read, for lists of them.
struct ContainerTraits {
  std::string_view name;
  std::string_view summary;
  bool writes = false;
};
[[nodiscard]] std::span<const ContainerTraits> containers();

}  // namespace nibble
