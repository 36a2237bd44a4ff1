// Reading checkpoints: a file, an index of shards or a model directory, all of them a list of weight files.

#include "formats/checkpoint.hpp"

#include <fmt/format.h>

#include <sys/stat.h>
#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <map>
#include <string>
#include <system_error>
#include <vector>

#include "core/checked.hpp"
#include "core/files/directory.hpp"
#include "core/files/open_files.hpp"
#include "core/json.hpp"
#include "core/memory_limit.hpp"
#include "core/refuse.hpp"
#include "formats/containers/container.hpp"
#include "formats/containers/sharded.hpp"
#include "formats/models/config.hpp"
#include "formats/models/hub.hpp"
#include "formats/models/names.hpp"

namespace nibble {
namespace {

namespace fs = std::filesystem;

// The weight files of a directory, in the order in which loaders look for them: transformers takes the single file
// if there are both. diffusers does the same with its own prefix.
std::vector<std::string> weight_names() {
  std::vector<std::string> names;
  for (const std::string_view stem : {"model", "diffusion_pytorch_model"})
    for (const ContainerTraits& container : containers())
      for (const std::string_view index : {std::string_view(), index_extension})
        names.push_back(fmt::format("{}{}{}", stem, container.extension, index));
  return names;
}

class Checkpoint final : public Reader {
 public:
  Checkpoint(fs::path path, const fs::path& directory, std::uint64_t max_memory)
      : path_(std::move(path)), is_directory_(fs::is_directory(path_)), directory_(directory), memory_(max_memory) {}

  [[nodiscard]] const Directory& directory() const noexcept { return directory_; }

  // Errors name files by the path that was given.
  [[nodiscard]] InputFile open(const std::string& name) const { return {directory_.fd(), name, label_of(name)}; }

  void read_config() {
    if (!directory_.has(config::file_name)) return;
    const InputFile& file = open_other(config::file_name);
    file.check_size(config::max_bytes);
    memory_.take(file.size(), file.label());  // no more than that is kept of it
    TakenMemory text_memory(memory_, file.label());
    text_memory.add(file.size());
    const std::string text = file.read_text(config::max_bytes);
    config_ = config::read(text, file.label(), memory_);
    rewrite_bytes_ = config::rewrite_bytes(text, file.label());
  }

  void add_file(const std::string& name) {
    WeightFile file = open_weight_file({directory_.fd(), name, label_of(name), &open_files_}, memory_);
    memory_.take(file.tensors.memory_bytes() + bytes_per_tensor * file.tensors.size() + bytes_per_file, label_of(name));
    if (tensors_.empty()) {
      tensors_ = std::move(file.tensors);
    } else {
      TakenMemory growing(memory_, label_of(name));
      growing.add(tensors_.memory_bytes() + file.tensors.memory_bytes());
      tensors_.append(file.tensors);
    }
    ends_.push_back(tensors_.size());
    sources_.push_back(std::move(file.source));
    files_.push_back(name);
  }

  // A shard may hold tensors that the index does not list: loaders take all that is in the files it names.
  void add_shards(const std::string& index_name) {
    const InputFile& file = open_other(index_name);
    file.check_size(max_index_bytes);
    const json::Text text(file.size(), [&](std::uint64_t offset, std::span<char> out) {
      file.read(offset, std::as_writable_bytes(out));
    });
    TakenMemory index_memory(memory_, file.label());
    const ShardIndex index =
        parse_index(text, file.label(), index_memory, [this](const std::string& name) { (void)open(name); });
    for (const std::string& name : index.files) add_file(name);

    const NameIndex names(tensors_);
    if (const auto twice = names.duplicate())
      refuse(label_of(files_[file_of(twice->second)]), "duplicate tensor '{}': it is in '{}' too",
             printable(tensors_.name(twice->second)), escaped(files_[file_of(twice->first)]));
    for (std::size_t i = 0; i < index.tensors.size(); ++i) {
      const auto tensor = names.find(index.tensors[i]);
      if (!tensor || file_of(*tensor) != index.shards[i])
        refuse(label_of(index.files[index.shards[i]]), "has no tensor '{}', which {} lists",
               printable(index.tensors[i]), escaped(index_name));
    }
  }

  const TensorList& tensors() const noexcept override { return tensors_; }
  std::size_t file_of(std::size_t tensor) const override {
    return static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), tensor) - ends_.begin());
  }
  std::span<const std::string> files() const noexcept override { return files_; }
  std::span<const std::string> other_files() const noexcept override { return other_files_; }
  const fs::path& path() const noexcept override { return path_; }
  const std::optional<ModelConfig>& config() const noexcept override { return config_; }

  void read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const override {
    const std::size_t file = file_of(tensor);
    const Checked end = Checked(offset) + out.size();
    if (!end.valid() || end.value() > tensors_.bytes(tensor))
      throw Error(Errc::internal, fmt::format("{} bytes at {} of tensor '{}', which has {}", out.size(), offset,
                                              printable(tensors_.name(tensor)), tensors_.bytes(tensor)));
    sources_[file]->read(tensor - first_of(file), offset, out);
  }

  void check_unchanged() const override {
    for (const auto& source : sources_) source->check_unchanged();
    for (const InputFile& file : others_) file.check_unchanged();
  }

  std::uint64_t memory_bytes() const override { return memory_.taken(); }

 private:
  std::uint64_t position(std::size_t tensor, std::uint64_t offset) const override {
    const std::size_t file = file_of(tensor);
    return sources_[file]->position(tensor - first_of(file)) + offset;
  }
  std::uint64_t rewrite_bytes() const override { return rewrite_bytes_; }

  const InputFile& open_other(const std::string& name) {
    other_files_.push_back(name);
    return others_.emplace_back(open(name));
  }

  [[nodiscard]] std::string label_of(const std::string& name) const {
    return escaped((is_directory_ ? path_ / name : path_).native());
  }

  static constexpr std::uint64_t bytes_per_tensor = sizeof(std::uint64_t);  // its offset in the file
  static constexpr std::uint64_t bytes_per_file = 1024;  // a name of up to 255 bytes, kept several times

  [[nodiscard]] std::size_t first_of(std::size_t file) const { return file == 0 ? 0 : ends_[file - 1]; }

  fs::path path_;
  bool is_directory_;
  Directory directory_;  // open as long as the files: check_unchanged() looks their names up again
  MemoryLimit memory_;
  OpenFiles open_files_;  // of the sources
  std::vector<std::string> files_;
  std::vector<std::unique_ptr<Source>> sources_;
  std::vector<std::string> other_files_;
  std::vector<InputFile> others_;  // index and config.json
  TensorList tensors_;
  std::vector<std::size_t> ends_;  // file f holds tensors [ends_[f - 1], ends_[f])
  std::optional<ModelConfig> config_;
  std::uint64_t rewrite_bytes_ = 0;
};

// The folders of a pipeline that are models of their own.
std::string pipeline_parts(const fs::path& path) {
  const std::vector<std::string> names = weight_names();
  std::vector<std::string> parts;
  for (const std::string& folder : list_directory(path, escaped(path.native())))
    if (std::any_of(names.begin(), names.end(), [&](const std::string& name) {
          std::error_code unknown;
          return fs::exists(path / folder / name, unknown);
        }))
      parts.push_back(printable(folder) + "/");
  constexpr std::size_t shown = 8;
  if (parts.empty()) return fmt::format("none of its folders has weights in {}", container_names());
  const bool more = parts.size() > shown;
  parts.resize(std::min(parts.size(), shown));
  return fmt::format("convert its parts one by one: {}{}", fmt::join(parts, ", "), more ? ", ..." : "");
}

// Describes a directory that lacks the files that were looked for.
[[noreturn]] void refuse_directory(const fs::path& path) {
  std::map<std::string, std::string> found;  // by extension, the first name of each
  const auto exists = [&](const char* name) {
    std::error_code unknown;
    return fs::exists(path / name, unknown);
  };
  const std::string label = escaped(path.native());
  for (const std::string& name : list_directory(path, label)) found.try_emplace(fs::path(name).extension(), name);
  if (exists("adapter_config.json"))
    throw Error(Errc::bad_input, label, "is an adapter, not a model: it has to be merged into its base model first",
                Remedy::Kind::merge);
  if (exists("model_index.json")) refuse(label, "is a pipeline of diffusers: {}", pipeline_parts(path));
  const std::vector<std::string> names = weight_names();
  std::string text = fmt::format("has neither {} nor {}", names[0], names[1]);
  if (const auto weights =
          std::ranges::find_if(found, [](const auto& first) { return has_weight_extension(first.first); });
      weights != found.end())
    text += fmt::format("; to open '{}', name the file itself", printable(weights->second));
  else if (found.contains(".bin") || found.contains(".pt") || found.contains(".pth"))
    text += "; torch files are not supported yet";
  else if (found.contains(".gguf"))
    text += "; GGUF files are not supported yet";
  refuse(label, "{}", text);
}

fs::path find_model(const fs::path& path) {
  struct ::stat status {};
  if (path.empty()) refuse("''", "the path is empty");
  if (path.native().find('\0') != std::string::npos) refuse(escaped(path.native()), "the path contains a NUL byte");
  if (::stat(path.c_str(), &status) == 0) return path;
  const int failure = errno;
  const std::string reason = std::generic_category().message(failure);
  if (failure != ENOENT && failure != ENOTDIR && failure != ELOOP && failure != ENAMETOOLONG)
    throw Error(Errc::io, escaped(path.native()), reason);

  const auto name = failure == ENOENT ? parse_model_name(path.native()) : std::nullopt;
  if (!name) refuse(escaped(path.native()), "{}", reason);
  if (const auto snapshot = find_in_hub_cache(*name)) return *snapshot;
  // A path below an existing folder is not the name of a model.
  std::error_code error;
  if (name->repository.find('/') == std::string_view::npos || fs::exists(path.parent_path(), error))
    refuse(escaped(path.native()), "{}", reason);
  refuse(escaped(path.native()), "no such file, and not in the hub cache {}: hf download {}{}",
         escaped(hub_cache().native()), name->repository,
         name->revision == "main" ? "" : fmt::format(" --revision {}", name->revision));
}

}  // namespace

std::string Reader::label_of(std::size_t tensor) const {
  return escaped((is_directory() ? path() / files()[file_of(tensor)] : path()).native());
}

std::unique_ptr<Reader> open_files(const fs::path& given, std::uint64_t max_memory) {
  const fs::path path = find_model(given);
  std::error_code error;
  const bool is_directory = fs::is_directory(path, error);
  const bool is_index = !is_directory && path.native().ends_with(index_extension);

  const fs::path parent = path.has_parent_path() ? path.parent_path() : fs::path(".");
  const fs::path& directory = is_directory ? path : parent;
  auto checkpoint = std::make_unique<Checkpoint>(is_index ? parent : path, directory, max_memory);

  std::string name = path.filename();
  if (is_directory) {
    const std::vector<std::string> names = weight_names();
    const auto present = [&](const std::string& candidate) { return checkpoint->directory().has(candidate); };
    const auto first = std::find_if(names.begin(), names.end(), present);
    if (first == names.end()) refuse_directory(path);
    name = *first;
  }
  if (is_directory || is_index) checkpoint->read_config();
  if (name.ends_with(index_extension))
    checkpoint->add_shards(name);
  else
    checkpoint->add_file(name);
  return checkpoint;
}

}  // namespace nibble
