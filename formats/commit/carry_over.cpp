#include "formats/commit/carry_over.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <set>
#include <span>
#include <string_view>

#include "core/files/directory.hpp"
#include "core/refuse.hpp"
#include "formats/commit/replaceable.hpp"
#include "formats/containers/container.hpp"
#include "formats/models/config.hpp"
#include "nibble/error.hpp"

namespace nibble {
namespace {

constexpr std::uint64_t copy_block = 1 << 20;
constexpr int nowhere = -1;                  // instead of a directory: measure only
constexpr std::size_t max_folders = 10'000;  // links can make it look like more folders than there are
constexpr std::size_t max_depth = 64;

// Weights of other tools, beside those of our containers.
constexpr std::string_view bin_extension = ".bin";
constexpr std::array<std::string_view, 10> foreign_weights{".pt",      ".pth", ".ckpt", ".gguf",      ".h5",
                                                           ".msgpack", ".ot",  ".onnx", ".onnx_data", ".tflite"};

// No weights of the model, in spite of the extension: Qwen2.5-Omni loads its voices from this file.
constexpr std::string_view voices = "spk_dict.pt";

// A folder inside the model's may be a module of its own, with weights in our containers or in .bin files (the Dense
// layers of sentence-transformers): such files are carried over.
bool is_weights(const std::string& name, bool top) {
  if (name == voices) return false;
  if (top && (has_weight_extension(name) || name.ends_with(bin_extension))) return true;
  return std::ranges::any_of(foreign_weights, [&](std::string_view extension) { return name.ends_with(extension); });
}

bool is_link(int directory, const std::string& name) {
  struct stat status {};
  return fstatat(directory, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(status.st_mode);
}

}  // namespace

std::string CarryOver::label_in(const std::string& path) const {
  return path.empty() ? input_ : fmt::format("{}/{}", input_, printable(path));
}

void CarryOver::fail_in(const std::string& path, std::string_view action) const {
  throw Error(Errc::io, label_in(path), fmt::format("{}: {}", action, std::strerror(errno)));
}

void CarryOver::fail_out(const std::string& path, std::string_view action) const {
  throw Error(Errc::io, fmt::format("{}/{}", output_, printable(path)),
              fmt::format("{}: {}", action, std::strerror(errno)));
}

std::uint64_t CarryOver::measure(const Directory& from) {
  seen_ = {};
  walk(from, nowhere);
  is_measured_ = true;
  return bytes_;
}

void CarryOver::copy(const Directory& from, int to) {
  walk(from, to);
  const std::set<std::string_view> copied(paths_.begin(), paths_.end());
  for (const auto& [path, seen] : seen_)
    if (!copied.contains(path)) throw Error(Errc::input_changed, label_in(path), "no longer exists");
}

void CarryOver::walk(const Directory& from, int to) {
  folders_ = 0;
  bytes_ = 0;
  left_out_ = {};
  links_ = {};
  paths_ = {};
  walk_directory(from.fd(), to, "");
}

bool CarryOver::is_carried_over(const std::string& name, const std::string& path) {
  const bool top = path.empty();
  const auto is_in = [&](std::span<const std::string> names) { return std::ranges::find(names, name) != names.end(); };
  if (name.starts_with('.')) return false;
  if (top && (name == config::file_name || name == manifest_file || is_in(replaced_))) return false;
  if (top && (name == "adapter_config.json" || name.starts_with("adapter_model."))) {
    left_out_.adapter.push_back(name);
    return false;
  }
  // An index is treated like the weights that it lists.
  if (name.ends_with(index_extension) && is_weights(name.substr(0, name.size() - index_extension.size()), top))
    return false;
  if (!is_weights(name, top)) return true;
  if (!top || !is_in(converted_)) left_out_.weights.push_back(path + name);
  return false;
}

void CarryOver::walk_directory(int from, int to, const std::string& path) {
  // Through a path-only descriptor nothing can be listed.
  const Descriptor here(openat(from, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  struct stat status {};
  if (here.get() < 0 || fstat(here.get(), &status) != 0) fail_in(path, "cannot open");
  const FolderId folder{status.st_dev, status.st_ino};
  if (std::find(above_.begin(), above_.end(), folder) != above_.end()) return;
  if (above_.size() == max_depth)
    refuse(label_in(path), "is a folder inside more than {} others, too deep to carry over", max_depth - 1);
  above_.push_back(folder);
  for (const std::string& name : list_directory(here.get(), label_in(path))) {
    if (!name.starts_with('.') && is_link(here.get(), name)) links_.push_back(path + name);
    if (fstatat(here.get(), name.c_str(), &status, 0) != 0) {
      if (errno != ENOENT && errno != ELOOP) fail_in(path + name, "cannot read its status");
      if (!name.starts_with('.')) left_out_.links.push_back(path + name);
    } else if (S_ISDIR(status.st_mode)) {
      if (path.empty() && is_written_ && is_written_(name))
        refuse(label_in(name), "is a folder, but the output has a file of that name");
      const bool is_of_the_file_system = path.empty() && name == "lost+found";
      if (!name.starts_with('.') && !is_of_the_file_system) walk_subdirectory(here.get(), to, name, path);
    } else if (is_carried_over(name, path)) {
      if (S_ISREG(status.st_mode))
        take_file(here.get(), to, name, path);
      else
        left_out_.special.push_back(path + name);
    }
  }
  above_.pop_back();
}

void CarryOver::walk_subdirectory(int from, int to, const std::string& name, const std::string& path) {
  if (++folders_ > max_folders)
    refuse(label_in(path + name), "is one of more than {} folders to carry over", max_folders);
  const Descriptor inner(openat(from, name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (inner.get() < 0) fail_in(path + name, "cannot open");
  const std::size_t files_before = paths_.size();
  if (to == nowhere) {
    walk_directory(inner.get(), nowhere, path + name + "/");
    if (paths_.size() > files_before) paths_.push_back(path + name);
    return;
  }
  if (mkdirat(to, name.c_str(), 0777) != 0) fail_out(path + name, "cannot create");
  const Descriptor made = open_directory(to, name);
  if (made.get() < 0) fail_out(path + name, "cannot open");
  walk_directory(inner.get(), made.get(), path + name + "/");
  if (unlinkat(to, name.c_str(), AT_REMOVEDIR) == 0) return;  // it held only weights
  if (fsync(made.get()) != 0) fail_out(path + name, "cannot flush");
}

void CarryOver::take_file(int from, int to, const std::string& name, const std::string& path) {
  struct stat status {};
  if (fstatat(from, name.c_str(), &status, 0) != 0) fail_in(path + name, "cannot read its status");
  const InputFile in(from, name, label_in(path + name));
  bytes_ += in.size();
  paths_.push_back(path + name);
  const Seen now{status.st_dev, status.st_ino, status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec};
  if (to == nowhere) {
    seen_.emplace(path + name, now);
    return;
  }
  if (is_measured_) {
    const auto before = seen_.find(path + name);
    if (before == seen_.end()) throw Error(Errc::input_changed, in.label(), "appeared while the model was read");
    if (before->second != now) throw Error(Errc::input_changed, in.label(), "changed while the model was read");
  }
  OutputFile out(to, name, output_ + "/" + printable(path + name));
  std::vector<std::byte> block(std::min(in.size(), copy_block));
  for (std::uint64_t offset = 0; offset < in.size(); offset += block.size()) {
    const std::span part = std::span(block).first(std::min<std::uint64_t>(block.size(), in.size() - offset));
    in.read(offset, part);
    out.write_at(offset, part);
  }
  in.check_unchanged();
  if (fchmodat(to, name.c_str(), status.st_mode & 0777, 0) != 0) fail_out(path + name, "cannot set its mode");
  out.flush();
  out.close();
}

}  // namespace nibble
