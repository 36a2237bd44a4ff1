#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "core/files/file.hpp"
#include "core/memory_limit.hpp"
#include "nibble/checkpoint.hpp"
#include "nibble/tensor_list.hpp"

namespace nibble {

/// The data of one weight file. Thread-safe.
class Source {
 public:
  virtual ~Source() = default;

  /// Fills `out` with bytes of a tensor from `offset` on. The caller has checked that the tensor has them.
  virtual void read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const = 0;

  /// Where a tensor's first byte lies in the file.
  [[nodiscard]] virtual std::uint64_t position(std::size_t tensor) const = 0;

  /// As InputFile::check_unchanged().
  virtual void check_unchanged() const = 0;
};

/// One weight file, open, its header read and checked.
struct WeightFile {
  TensorList tensors;  ///< in the order of their data, names unique
  std::unique_ptr<Source> source;
};

/// What a container has to define; registry.cpp lists them.
struct Container {
  ContainerTraits traits;

  /// Yes or no from the first 16 bytes (fewer if the file is shorter).
  bool (*sniff)(std::span<const std::byte> head);

  /// Throws Error(bad_input) that names file, tensor, fact and limit, and Error(no_space) if `memory` does not allow
  /// what reading the header takes. The caller counts what the WeightFile keeps.
  WeightFile (*open)(InputFile file, MemoryLimit& memory);
};

/// An index of shards has the name of a single file, followed by this.
inline constexpr std::string_view index_extension = ".index.json";

/// For people: "safetensors"; of several "NAME or NAME".
[[nodiscard]] std::string container_names();

/// The container of all weights that nibble writes.
[[nodiscard]] const ContainerTraits& written_container();

/// Whether a file is named as the weight files of some container are.
[[nodiscard]] bool has_weight_extension(std::string_view name);

/// Whether any container recognizes a file that begins like this.
[[nodiscard]] bool sniffs_of_weights(std::span<const std::byte> head);

/// Opens a weight file with the container that its first bytes indicate. Files that are known not to be weights (a Git
/// LFS pointer, a web page) or not supported are refused by name.
[[nodiscard]] WeightFile open_weight_file(InputFile file, MemoryLimit& memory);

}  // namespace nibble
