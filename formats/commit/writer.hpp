#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <memory_resource>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/memory/buffers.hpp"
#include "core/memory/huge_pages.hpp"
#include "core/memory/scratch.hpp"
#include "formats/commit/work_log.hpp"
#include "formats/containers/part_list.hpp"
#include "nibble/checkpoint.hpp"

namespace nibble {

/// What a Writer needs, besides the tensors, to complete a checkpoint. None of it contains paths or times, so equal
/// inputs and options give equal bytes.
struct Finish {
  std::string quantization_config;  ///< JSON object for config.json, or empty
  bool was_decoded = false;         ///< whether to remove from config.json what it says about the source's quantization
  bool unties = false;              ///< whether to say in config.json that the embeddings are not tied
  std::uint64_t parameters = 0;     ///< of the model, for the index
  std::string dtype;                ///< "float16": for config.json's dtype and torch_dtype; or empty
  std::vector<const PartList*> shards;  ///< as they were given to begin(), for the index: one for each shard
};

/// A checkpoint on its way to disk: nothing appears under its name until commit(), and the destructor undoes what was
/// not committed. write() and lend() are thread-safe; write_manifest() and make_scratch() may be called while others
/// write; the rest may not.
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

  /// The log of what is finished, for a run that resumes this one; null if this writer keeps none. `head` says what the
  /// run does. With CreateOptions::resume, it is the log of an interrupted run with the files that this run left, if
  /// there is one and `difference`, given its head, is empty: why that run did something else. Call it before begin().
  /// Throws Error(output_exists) for another run, Error(io).
  [[nodiscard]] virtual WorkLog* begin_log(std::string_view /*head*/,
                                           const std::function<std::string(std::string_view head)>& /*difference*/) {
    return nullptr;
  }

  /// As begin(), for a shard that an interrupted run has begun with the same parts; false if there is none. Nothing is
  /// known of the bytes of its parts. Throws Error(io).
  [[nodiscard]] virtual bool reopen(std::size_t /*index*/, const PartList& /*parts*/) { return false; }

  /// Bytes of a part of a shard that was reopened, as they are on the disk. False if they cannot be read.
  [[nodiscard]] virtual bool read(std::size_t /*part*/, std::uint64_t /*offset*/, std::span<std::byte> /*out*/) {
    return false;
  }

  /// Call it after records have been added to the log: flushes the bytes of the shard and then the log, if that was
  /// CreateOptions::flush_interval ago.
  virtual void flush_log() {}

  /// What is finished stays on the disk for a run that resumes this one. Returns where, for messages; empty if it
  /// cannot stay.
  virtual std::string keep() { return {}; }

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
  bool resume = false;      ///< go on with what an interrupted run has finished
  /// How often what is finished is flushed, so that a power cut loses no more than the work of that time. A flush waits
  /// for the disk: shards that take less time than this to convert are flushed once, at their end.
  std::chrono::milliseconds flush_interval = std::chrono::seconds(10);
  std::pmr::memory_resource* memory = nullptr;  ///< for batches in flight; must outlive the writer. Null: huge pages
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

}  // namespace nibble
