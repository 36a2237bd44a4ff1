// One file, because the rules by which a directory on disk is trusted when a run begins, and by which it is checked
// when it ends, are the same: both can only be read together.

#include "formats/commit/target.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "core/files/directory.hpp"
#include "formats/commit/replaceable.hpp"
#include "formats/commit/swap.hpp"
#include "formats/containers/container.hpp"
#include "formats/models/config.hpp"
#include "nibble/error.hpp"

namespace nibble {
namespace {

constexpr const char* lost_and_found = "lost+found";  // a new ext4 file system brings it along; it cannot be removed

// A manifest is recognized by its beginning.
bool is_manifest(int file) {
  std::array<char, 64> head{};
  const Transfer got = read_all(file, 0, std::as_writable_bytes(std::span(head)));
  return std::string_view(head.data(), got.bytes).find("\"schema_version\"") != std::string_view::npos;
}

// Why a folder cannot be opened, if it does not exist or a component of its path is not a folder.
std::string missing_text(const std::filesystem::path& folder) {
  std::error_code error;
  for (std::filesystem::path above = folder; !above.empty() && above != above.parent_path();
       above = above.parent_path())
    if (const auto status = std::filesystem::status(above, error);
        std::filesystem::exists(status) && !std::filesystem::is_directory(status))
      return fmt::format("'{}' is not a directory", printable(above.string()));
  return fmt::format("the folder '{}' does not exist", printable(folder.string()));
}

constexpr Remedy replaces_output{Remedy::Kind::replace_output};
constexpr Remedy finished{Remedy::Kind::finish_replacement};

}  // namespace

bool is_model(const std::vector<std::string>& entries) {
  const auto has = [&](auto&& test) { return std::any_of(entries.begin(), entries.end(), test); };
  return has([](const std::string& entry) { return entry == manifest_file; }) ||
         (has([](const std::string& entry) { return entry == config::file_name; }) &&
          has([](const std::string& entry) { return has_weight_extension(entry); }));
}

void Target::fail(std::string_view action) const {
  throw Error(Errc::io, printable(shown_), fmt::format("{}: {}", action, std::strerror(errno)));
}

void Target::refuse_existing(const std::string& shown, std::string_view fact, Remedy remedy) const {
  throw Error(Errc::output_exists, printable(shown), fact, remedy);
}

void Target::refuse_unfinished() const { refuse_existing(shown_, "its replacement was interrupted", finished); }

bool Target::has_entry(int at, const std::string& name) const {
  return status_of(at, name, printable(shown_)).has_value();
}

std::string Target::manifest_name() const { return name_ + manifest_suffix; }

std::string Target::beside_name() const { return fmt::format(".{}.nibble", name_); }

Target::Target(const std::filesystem::path& path, Kind kind, const Options& options)
    : kind_(kind), options_(options), shown_(path.string()) {
  // Never normalized as text: `link/..` need not be the folder of `link`.
  std::string text = path.string();
  while (text.size() > 1 && text.ends_with('/')) text.pop_back();
  path_ = text;
  name_ = path_.filename().string();
  if (name_.empty() || name_ == "." || name_ == "..")
    throw Error(Errc::usage, printable(shown_), "the path of an output must end in a name");
  const std::string folder = path_.has_parent_path() ? path_.parent_path().string() : ".";
  parent_ = Descriptor(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (parent_.get() < 0) {
    if (errno == ENOENT || errno == ENOTDIR) throw Error(Errc::usage, printable(shown_), missing_text(folder));
    throw Error(Errc::io, printable(folder), fmt::format("cannot open: {}", std::strerror(errno)));
  }
  const long longest = fpathconf(parent_.get(), _PC_NAME_MAX);
  const std::size_t room = std::strlen(manifest_suffix);  // ".OUT.nibble" is shorter
  if (longest > 0 && name_.size() + room > static_cast<std::size_t>(longest))
    throw Error(Errc::usage, printable(shown_),
                fmt::format("its name has {} bytes; at most {} leave room for the names of nibble's own files",
                            name_.size(), static_cast<std::size_t>(longest) - room));
  judge_target();
}

void Target::judge_target() {
  const auto status = status_of(parent_.get(), name_, printable(shown_));
  const bool is_directory = status && S_ISDIR(status->st_mode);
  // Checked before the error suggests replacing it, which would not help.
  if (kind_ == Kind::directory && status && S_ISLNK(status->st_mode))
    refuse_existing(shown_, "exists and is a symbolic link, not a directory");
  if (kind_ == Kind::directory && status && !is_directory) refuse_existing(shown_, "exists and is not a directory");
  if (kind_ == Kind::file && status && !S_ISREG(status->st_mode))
    refuse_existing(shown_, "exists and is not a regular file");
  if (!options_.overwrite) {
    if (kind_ == Kind::directory && is_directory) {
      const Descriptor target = open_directory(parent_.get(), name_);
      if (target.get() >= 0) refuse_interrupted(target.get(), inside_name);
    }
    refuse_interrupted(parent_.get(), beside_name());
    if (status) refuse_existing(shown_, "exists", replaces_output);
  }
  if (kind_ == Kind::file) {
    (void)judge_files();
  } else if (status) {
    const Descriptor target = open_directory(parent_.get(), name_);
    if (target.get() < 0) fail("cannot open");
    judge_permission(name_, shown_, *status);
    const std::vector<std::string> entries = entries_of(target.get());
    const bool has_work = has_entry(target.get(), inside_name);
    inside_ = must_be_inside(*status) || has_work;
    if (has_work || !is_model(entries)) return;  // with an earlier run's work, the entries may still change
    const std::vector<std::string> leaving = judge_leaving(target.get(), options_.paths);
    keeps_ = !inside_ && leaving.size() < entries.size();
    inside_ = inside_ || keeps_;
    if (inside_) judge_folders(target.get(), leaving);
  }
}

// Finds what the system would refuse only after all the work is done.
void Target::judge_permission(const std::string& name, const std::string& shown, const struct stat& status) const {
  struct stat parent {};
  if (fstat(parent_.get(), &parent) != 0) fail("cannot read the status of its folder");
  const uid_t user = geteuid();
  if ((parent.st_mode & S_ISVTX) != 0 && user != 0 && user != parent.st_uid && user != status.st_uid)
    throw Error(Errc::io, printable(shown),
                "belongs to another user, and only the owner can replace anything in a sticky folder");
  // When a directory moves, its entry for the folder above is written.
  if (S_ISDIR(status.st_mode) && faccessat(parent_.get(), name.c_str(), W_OK | X_OK, AT_EACCESS) != 0)
    throw Error(Errc::io, printable(shown), fmt::format("cannot replace: {}", std::strerror(errno)));
}

// A folder that moves into another one has to be writable, because its entry for the folder above changes.
void Target::judge_folders(int directory, const std::vector<std::string>& leaving) const {
  for (const std::string& entry : leaving) {
    const auto status = status_of(directory, entry, printable(shown_));
    if (status && S_ISDIR(status->st_mode) && faccessat(directory, entry.c_str(), W_OK, AT_EACCESS) != 0)
      fail(fmt::format("cannot replace the folder '{}'", printable(entry)));
  }
}

Target::WorkLocation Target::work_location() const {
  Descriptor root = inside_ ? open_directory(parent_.get(), name_) : Descriptor(dup(parent_.get()));
  if (root.get() < 0) fail("cannot open");
  return {std::move(root), inside_ ? inside_name : beside_name(),
          inside_ ? path_.string() : path_.parent_path().string()};
}

// Throws what recover() would throw, unless the work directory of an earlier run changes that: then only the run itself
// can tell.
void Target::judge_as_it_is() const {
  const auto status = status_of(parent_.get(), name_, printable(shown_));
  if (kind_ == Kind::file || !status || has_entry(parent_.get(), beside_name())) return;
  const Descriptor old = open_directory(parent_.get(), name_);
  if (old.get() < 0) fail("cannot open");
  if (has_entry(old.get(), inside_name)) return;
  (void)judge_old(old.get());
}

Target::Judged Target::judge_files() const {
  Judged judged;
  judged.file = judge_file(parent_.get(), name_, shown_, options_.may_replace);
  if (options_.with_manifest)
    judged.manifest = judge_file(parent_.get(), manifest_name(), shown_ + manifest_suffix, is_manifest);
  return judged;
}

// A file, or nothing: returns the inode of what was judged.
std::uint64_t Target::judge_file(int at, const std::string& name, const std::string& shown,
                                 bool (*may_replace)(int)) const {
  const auto status = status_of(at, name, printable(shown_));
  if (!status) return 0;
  if (!options_.overwrite) refuse_existing(shown, "exists", replaces_output);
  if (!S_ISREG(status->st_mode)) refuse_existing(shown, "exists and is not a regular file");
  judge_permission(name, shown, *status);
  if (status->st_size == 0 || may_replace == nullptr) return status->st_ino;
  const Descriptor file(openat(at, name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat opened {};
  if (file.get() < 0 || fstat(file.get(), &opened) != 0)
    throw Error(Errc::io, printable(shown), fmt::format("cannot open: {}", std::strerror(errno)));
  if (!may_replace(file.get()))
    refuse_existing(shown, "exists and does not look like a file that nibble wrote: remove it first");
  return opened.st_ino;
}

// Once more what has come out: it may have been written to since. A file that was exchanged is in `new`, what was taken
// out is in `old`.
void Target::judge_replaced(int work) const {
  for (const char* const folder : {Swap::new_name, Swap::old_name}) {
    const Descriptor directory = open_directory(work, folder);
    if (directory.get() < 0) fail("cannot open the old output");
    judge_file(directory.get(), name_, shown_, options_.may_replace);
    if (options_.with_manifest && std::string_view(folder) == Swap::old_name)
      judge_file(directory.get(), manifest_name(), shown_ + manifest_suffix, is_manifest);
  }
}

// Only a model is replaced, or an empty directory.
void Target::judge_entries(const std::vector<std::string>& entries) const {
  if (!entries.empty() && !is_model(entries)) refuse_existing(shown_, "exists and holds no model: remove it first");
}

// The entries of a directory that may be replaced.
std::vector<std::string> Target::judge_old(int directory) const {
  std::vector<std::string> entries = entries_of(directory);
  judge_entries(entries);
  for (const std::string& entry : entries)
    if (is_mount_point(directory, entry.c_str()))
      refuse_existing(shown_, fmt::format("contains the mount point '{}': unmount it first", printable(entry)));
  return entries;
}

std::optional<Target::Old> Target::old() const {
  const auto status = status_of(parent_.get(), name_, printable(shown_));
  if (kind_ != Kind::directory || !status) return {};
  if (!options_.overwrite) refuse_existing(shown_, "exists", replaces_output);  // its owner has just committed
  const Descriptor directory = open_directory(parent_.get(), name_);
  Old old;
  if (directory.get() < 0 || fstat(directory.get(), &old.status) != 0) fail("cannot open");
  old.tree = tree_of(directory.get(), judge_old(directory.get()), options_.paths);
  return old;
}

// The entries that leave a directory when these paths come in. What is lost with them is in the way.
std::vector<std::string> Target::judge_leaving(int directory, std::span<const std::string> fresh) const {
  Replaceable found = replaceable(directory, entries_of(directory), fresh, printable(shown_));
  if (!found.lost.empty())
    refuse_existing(shown_, fmt::format("contains '{}', which is in a folder that the new output replaces and lacks "
                                        "it: move it away first",
                                        printable(found.lost)));
  return std::move(found.entries);
}

// Entries that appeared in a directory after it was judged must not be removed with it.
void Target::judge_tree(const Old& old, int directory, const std::vector<std::string>& entries,
                        std::span<const std::string> fresh) const {
  for (const std::string& path : tree_of(directory, entries, fresh))
    if (!std::binary_search(old.tree.begin(), old.tree.end(), path))
      refuse_existing(shown_, fmt::format("'{}' appeared in it meanwhile; nothing is replaced", printable(path)));
}

// What is there on purpose in a directory that is replaced.
std::vector<std::string> Target::entries_of(int directory) const {
  std::vector<std::string> entries = list_directory(directory, printable(shown_));
  if (inside_) {
    std::erase(entries, lost_and_found);
    std::erase(entries, inside_name);
  }
  return entries;
}

// With what is in the folders that leave when the paths `fresh` come in. The other folders stay: they may be large, or
// belong to somebody else.
std::vector<std::string> Target::tree_of(int directory, const std::vector<std::string>& entries,
                                         std::span<const std::string> fresh) const {
  std::vector<std::string> tree = entries;
  for (const std::string& entry : entries) {
    const auto status = status_of(directory, entry, printable(shown_));
    if (!status || !S_ISDIR(status->st_mode)) continue;
    if (entry.starts_with('.') || std::ranges::find(fresh, entry) == fresh.end()) continue;
    const Descriptor inner = open_directory(directory, entry);
    if (inner.get() < 0) fail("cannot open a folder in it");
    for (const std::string& path : list_tree(inner.get(), printable(shown_)))
      tree.push_back(fmt::format("{}/{}", entry, path));
  }
  std::sort(tree.begin(), tree.end());
  return tree;
}

bool Target::must_be_inside(const struct stat& status) const {
  struct stat folder {};
  if (fstat(parent_.get(), &folder) != 0) fail("cannot read the status of its folder");
  return folder.st_dev != status.st_dev || is_mount_point(parent_.get(), name_.c_str()) ||
         faccessat(parent_.get(), ".", W_OK, AT_EACCESS) != 0;
}

// Only a run that may replace the output finishes a replacement that was stopped half-way; any other refuses.
void Target::refuse_interrupted(int root, const std::string& work_name) const {
  const Descriptor work = open_directory(root, work_name);
  if (work.get() < 0) return;
  const Descriptor target = root == parent_.get() ? Descriptor(dup(root)) : open_directory(parent_.get(), name_);
  const Swap::Journal journal = Swap(target.get(), work.get(), shown_).journal();
  if (journal.is_there && journal.problem.empty() && flock(work.get(), LOCK_SH | LOCK_NB) == 0) refuse_unfinished();
}

std::uint64_t Target::free_bytes() const {
  const Descriptor target = inside_ ? open_directory(parent_.get(), name_) : Descriptor();
  struct statvfs status {};
  if (fstatvfs(inside_ ? target.get() : parent_.get(), &status) != 0) fail("cannot read the free space");
  return std::uint64_t{status.f_bavail} * status.f_frsize;
}

bool Target::may_be_replaced(std::string_view entry) const {
  return inside_ ? !entry.starts_with('.') && entry != lost_and_found
                 : entry == name_ || (options_.with_manifest && entry == manifest_name());
}

}  // namespace nibble
