#include "core/files/directory.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>

#include "nibble/error.hpp"

namespace nibble {
namespace {

constexpr std::size_t max_name_bytes = 255;  // NAME_MAX of every file system in use

constexpr int directory_flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW;

// Removes what is below a directory. A folder that lies deep is moved up first, so that neither the stack nor the
// number of open files grows with the nesting.
class Remover {
 public:
  explicit Remover(int top) noexcept : top_(top) {}

  void run() noexcept {
    for (int round = 0; round < max_rounds; ++round) {
      const unsigned moved_before = moved_;
      clear(top_, 0);
      if (moved_ == moved_before) return;
    }
  }

  // An owner may remove folders that the owner may not write or enter.
  static Descriptor open_inner(int directory, const char* name) noexcept {
    Descriptor inner(openat(directory, name, directory_flags));
    if (inner.get() < 0 && errno == EACCES && fchmodat(directory, name, S_IRWXU, 0) == 0)
      inner = Descriptor(openat(directory, name, directory_flags));
    if (inner.get() >= 0) (void)fchmod(inner.get(), S_IRWXU);
    return inner;
  }

 private:
  static constexpr int deepest = 32;  // each has a block of names on the stack
  static constexpr int max_rounds = 10'000;
  static constexpr std::size_t block_bytes = 4096;

  void clear(int directory, int depth) noexcept {
    if (lseek(directory, 0, SEEK_SET) != 0) return;  // moved folders may come before the position that was read last
    alignas(dirent64) std::array<char, block_bytes> block;
    while (true) {
      const ssize_t got = getdents64(directory, block.data(), block.size());
      if (got <= 0) return;
      for (ssize_t at = 0; at < got;) {
        const auto* const entry = reinterpret_cast<const dirent64*>(block.data() + at);
        at += entry->d_reclen;
        const char* const name = entry->d_name;
        if (std::strcmp(name, ".") != 0 && std::strcmp(name, "..") != 0) remove(directory, name, depth);
      }
    }
  }

  void remove(int directory, const char* name, int depth) noexcept {
    if (unlinkat(directory, name, 0) == 0 || unlinkat(directory, name, AT_REMOVEDIR) == 0) return;
    if (depth == deepest) {
      move_up(directory, name);
      return;
    }
    {
      if (is_mount_point(directory, name)) return;
      const Descriptor inner = open_inner(directory, name);
      if (inner.get() < 0) return;
      clear(inner.get(), depth + 1);
    }
    unlinkat(directory, name, AT_REMOVEDIR);
  }

  // An earlier removal may have left an entry of this name behind.
  void move_up(int directory, const char* name) noexcept {
    for (int attempt = 0; attempt < max_rounds; ++attempt) {
      std::array<char, 32> new_name{};
      (void)std::snprintf(new_name.data(), new_name.size(), "%s%u", removed_prefix.data(), moved_++);
      if (renameat(directory, name, top_, new_name.data()) == 0 || (errno != ENOTEMPTY && errno != EEXIST)) return;
    }
  }

  int top_;
  unsigned moved_ = 0;
};

constexpr int deepest_tree = 256;

// Of the directory `path` in `at`.
std::vector<std::string> names_in(int at, const char* path, std::string_view label) {
  const auto fail = [&](int error) {
    throw Error(Errc::io, label, fmt::format("cannot list the directory: {}", std::strerror(error)));
  };
  // A descriptor of its own: the position in the directory belongs to it.
  Descriptor opened(openat(at, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (opened.get() < 0) fail(errno);
  const std::unique_ptr<DIR, decltype([](DIR* stream) { closedir(stream); })> stream(fdopendir(opened.get()));
  if (stream == nullptr) fail(errno);
  (void)opened.release();
  std::vector<std::string> names;
  while (true) {
    errno = 0;  // the end and an error look the same
    const dirent* const entry = readdir(stream.get());
    if (entry == nullptr && errno != 0) fail(errno);
    if (entry == nullptr) break;
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

void add_tree(int directory, const std::string& path, int depth, std::string_view label,
              std::vector<std::string>& paths) {
  for (const std::string& name : list_directory(directory, label)) {
    paths.push_back(path + name);
    const auto status = status_of(directory, name, label);
    if (!status || !S_ISDIR(status->st_mode)) continue;
    const Descriptor inner = open_directory(directory, name);
    if (inner.get() < 0)
      throw Error(Errc::io, label, fmt::format("cannot open '{}': {}", printable(path + name), std::strerror(errno)));
    if (depth == deepest_tree)
      throw Error(Errc::io, label,
                  fmt::format("'{}' is inside more than {} nested folders", printable(path + name), depth));
    add_tree(inner.get(), path + name + "/", depth + 1, label, paths);
  }
}

}  // namespace

Descriptor open_directory(int at, const std::string& name) noexcept {
  return Descriptor(openat(at, name.c_str(), directory_flags));
}

std::optional<struct ::stat> status_of(int at, const std::string& name, std::string_view label) {
  struct ::stat status {};
  if (fstatat(at, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0) return status;
  if (errno == ENOENT) return std::nullopt;
  throw Error(Errc::io, label,
              fmt::format("cannot read the status of '{}': {}", printable(name), std::strerror(errno)));
}

bool may_exist(int at, const char* name) noexcept {
  struct stat status {};
  return fstatat(at, name, &status, AT_SYMLINK_NOFOLLOW) == 0 || errno != ENOENT;
}

std::vector<std::string> list_directory(int directory, std::string_view label) {
  return names_in(directory, ".", label);
}

std::vector<std::string> list_directory(const std::filesystem::path& path, std::string_view label) {
  return names_in(AT_FDCWD, path.c_str(), label);
}

std::vector<std::string> list_tree(int directory, std::string_view label) {
  std::vector<std::string> paths;
  add_tree(directory, "", 0, label, paths);
  std::sort(paths.begin(), paths.end());
  return paths;
}

bool is_mount_point(int at, const char* name) noexcept {
  struct statx status {};
  return statx(at, name, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &status) == 0 &&
         (status.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
}

void remove_tree(int at, const char* name) noexcept {
  if (unlinkat(at, name, 0) == 0 || is_mount_point(at, name)) return;
  {
    const Descriptor directory = Remover::open_inner(at, name);
    if (directory.get() >= 0) remove_entries(directory.get());
  }
  unlinkat(at, name, AT_REMOVEDIR);
}

void remove_entries(int directory) noexcept { Remover(directory).run(); }

bool is_entry_name(std::string_view name) noexcept {
  return !name.empty() && name.size() <= max_name_bytes && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\0", 2)) == std::string_view::npos;
}

}  // namespace nibble
