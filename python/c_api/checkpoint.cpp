// Handles of open checkpoints, of which only the headers are read. A handle is a number that no other handle ever has,
// and is never followed as a pointer: one that was closed, or was none, is found out.

#include "nibble/checkpoint.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "formats/checkpoint.hpp"
#include "nibble/error.hpp"
#include "python/c_api/result.hpp"

namespace nibble::c_api {
namespace {

static_assert(NIBBLE_MAX_DIMENSIONS == max_dimensions);

struct Opened {
  std::unique_ptr<Reader> reader;
  std::vector<std::string> names;  // of tensors, because those of the reader do not end with a null byte
  std::vector<std::string> files;  // as paths
};

// A checkpoint that is closed while another thread asks it stays until that thread has its answer.
class Handles {
 public:
  nibble_checkpoint* add(std::shared_ptr<const Opened> opened) {
    const std::scoped_lock lock(mutex_);
    open_.emplace(next_, std::move(opened));
    return reinterpret_cast<nibble_checkpoint*>(next_++);  // NOLINT(performance-no-int-to-ptr): never followed
  }
  std::shared_ptr<const Opened> find(const nibble_checkpoint* handle) const {
    const std::scoped_lock lock(mutex_);
    const auto found = open_.find(reinterpret_cast<std::uintptr_t>(handle));
    return found == open_.end() ? nullptr : found->second;
  }
  // The checkpoint is destroyed by the caller, after the lock is.
  std::shared_ptr<const Opened> take(const nibble_checkpoint* handle) {
    const std::scoped_lock lock(mutex_);
    const auto taken = open_.extract(reinterpret_cast<std::uintptr_t>(handle));
    return taken.empty() ? nullptr : std::move(taken.mapped());
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::uintptr_t, std::shared_ptr<const Opened>> open_;
  std::uintptr_t next_ = 1;
};

Handles& handles() {
  static auto* const all = new Handles;  // never destroyed: threads may call while the process ends
  return *all;
}

std::shared_ptr<const Opened> open(const char* path, std::uint64_t max_memory) {
  OpenOptions options{.accept_quantized = true};
  if (max_memory != 0) options.max_memory = max_memory;
  auto opened = std::make_shared<Opened>();
  opened->reader = open_checkpoint(path, options);
  const Reader& reader = *opened->reader;
  for (std::size_t i = 0; i < reader.tensors().size(); ++i) opened->names.emplace_back(reader.tensors().name(i));
  const bool is_directory = reader.is_directory();
  for (const std::string& file : reader.files())
    opened->files.push_back(is_directory ? (reader.path() / file).native() : reader.path().native());
  return opened;
}

void describe(const Opened& checkpoint, std::size_t index, nibble_tensor& tensor) {
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
    *checkpoint = c_api::handles().add(c_api::open(path, max_memory));
  });
}

uint64_t nibble_checkpoint_count(const nibble_checkpoint* checkpoint) {
  const auto opened = nibble::c_api::handles().find(checkpoint);
  return opened == nullptr ? 0 : opened->names.size();
}

int nibble_checkpoint_tensor(const nibble_checkpoint* checkpoint, uint64_t index, nibble_tensor* tensor) {
  using namespace nibble;
  return c_api::guarded([&] {
    c_api::require(checkpoint, "checkpoint");
    c_api::require(tensor, "tensor");
    const auto opened = c_api::handles().find(checkpoint);
    if (opened == nullptr) throw Error(Errc::usage, "checkpoint is not open");
    if (index >= opened->names.size())
      throw Error(Errc::usage, fmt::format("index is {}, the checkpoint has {} tensors", index, opened->names.size()));
    c_api::clear_unknown(*tensor, "nibble_tensor");
    c_api::describe(*opened, index, *tensor);
  });
}

void nibble_checkpoint_close(nibble_checkpoint* checkpoint) { nibble::c_api::handles().take(checkpoint); }
