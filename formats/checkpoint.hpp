#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>

#include "nibble/checkpoint.hpp"

namespace nibble {

/// As open_checkpoint(), without asking whether anything can decode quantized tensors, which only the schemes know.
[[nodiscard]] std::unique_ptr<Reader> open_files(const std::filesystem::path& path, std::uint64_t max_memory);

/// What only the library itself asks a Reader.
struct ReaderInternals {
  /// The file offset of a tensor's byte `offset`; the addresses of buffers depend on it.
  [[nodiscard]] static std::uint64_t position(const Reader& reader, std::size_t tensor, std::uint64_t offset) {
    return reader.position(tensor, offset);
  }

  /// For memory estimates: config::rewrite_bytes() of its config.json, 0 without one.
  [[nodiscard]] static std::uint64_t rewrite_bytes(const Reader& reader) { return reader.rewrite_bytes(); }

  /// The type of a tensor in the model. Readers that compute weights give them in fp32, whatever the model has.
  [[nodiscard]] static DType model_type(const Reader& reader, std::size_t tensor) { return reader.model_type(tensor); }

  /// Whether config.json of a reader of plain weights says that they are quantized.
  [[nodiscard]] static bool was_quantized(const Reader& reader) { return reader.was_quantized(); }

  /// Whether the reader gives the output layer a weight of its own, and the model on the disk ties it to the
  /// embeddings.
  [[nodiscard]] static bool was_tied(const Reader& reader) { return reader.was_tied(); }

  /// For memory estimates: what reading the largest tensor takes beside its weights.
  [[nodiscard]] static std::uint64_t reading_bytes(const Reader& reader) { return reader.reading_bytes(); }

  /// Told after every MiB: the file that is being read, the bytes that have been read of all files, and their total. It
  /// may throw to end the reading.
  using FileProgress = Reader::FileProgress;

  /// What nibble.json says about the adapter that is merged in, a JSON object; empty if there is none. Reads its files.
  [[nodiscard]] static std::string adapter(const Reader& reader, const FileProgress& progress) {
    return reader.adapter(progress);
  }
};

}  // namespace nibble
