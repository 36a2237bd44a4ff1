// Handles of open checkpoints, of which only the headers are read.

#include "nibble/checkpoint.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "formats/checkpoint.hpp"
#include "nibble/error.hpp"
#include "python/c_api/result.hpp"

struct nibble_checkpoint {
  std::unique_ptr<nibble::Reader> reader;
  std::vector<std::string> names;  // of tensors, because those of the reader do not end with a null byte
  std::vector<std::string> files;  // as paths
};

namespace nibble::c_api {
namespace {

static_assert(NIBBLE_MAX_DIMENSIONS == max_dimensions);

std::unique_ptr<nibble_checkpoint> open(const char* path, std::uint64_t max_memory) {
  OpenOptions options{.accept_quantized = true};
  if (max_memory != 0) options.max_memory = max_memory;
  auto opened = std::make_unique<nibble_checkpoint>();
  opened->reader = open_checkpoint(path, options);
  const Reader& reader = *opened->reader;
  for (std::size_t i = 0; i < reader.tensors().size(); ++i) opened->names.emplace_back(reader.tensors().name(i));
  const bool is_directory = reader.is_directory();
  for (const std::string& file : reader.files())
    opened->files.push_back(is_directory ? (reader.path() / file).native() : reader.path().native());
  return opened;
}

void describe(const nibble_checkpoint& checkpoint, std::size_t index, nibble_tensor& tensor) {
  const Reader& reader = *checkpoint.reader;
  const TensorList& tensors = reader.tensors();
  const DTypeTraits& type = traits(tensors.dtype(index));
  const std::span<const std::uint64_t> shape = tensors.shape(index);
  tensor.name = checkpoint.names[index].c_str();
  tensor.name_bytes = checkpoint.names[index].size();
  tensor.dtype = type.name.data();  // a literal
  tensor.bits = type.bits;
  tensor.dimensions = static_cast<std::uint32_t>(shape.size());
  std::ranges::fill(tensor.shape, 0);
  std::ranges::copy(shape, tensor.shape);
  tensor.file = checkpoint.files[reader.file_of(index)].c_str();
  tensor.offset = ReaderInternals::position(reader, index, 0);
  tensor.bytes = tensors.bytes(index);
}

}  // namespace
}  // namespace nibble::c_api

int nibble_checkpoint_open(const char* path, uint64_t max_memory, nibble_checkpoint** checkpoint) {
  using namespace nibble;
  if (checkpoint != nullptr) *checkpoint = nullptr;
  return c_api::guarded([&] {
    c_api::require(path, "path");
    c_api::require(checkpoint, "checkpoint");
    *checkpoint = c_api::open(path, max_memory).release();
  });
}

uint64_t nibble_checkpoint_count(const nibble_checkpoint* checkpoint) {
  return checkpoint == nullptr ? 0 : checkpoint->names.size();
}

int nibble_checkpoint_tensor(const nibble_checkpoint* checkpoint, uint64_t index, nibble_tensor* tensor) {
  using namespace nibble;
  return c_api::guarded([&] {
    c_api::require(checkpoint, "checkpoint");
    c_api::require(tensor, "tensor");
    c_api::require_struct(tensor->struct_bytes, sizeof *tensor, "nibble_tensor");
    if (index >= checkpoint->names.size())
      throw Error(Errc::usage,
                  fmt::format("index is {}, the checkpoint has {} tensors", index, checkpoint->names.size()));
    c_api::describe(*checkpoint, index, *tensor);
  });
}

void nibble_checkpoint_close(nibble_checkpoint* checkpoint) {
  const std::unique_ptr<nibble_checkpoint> closed(checkpoint);
}
