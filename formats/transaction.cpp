#include "formats/transaction.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <utility>

#include "nibble/error.hpp"

namespace nibble {
namespace {

constexpr const char* journal_name = "journal";
constexpr const char* manifest_suffix = ".nibble.json";
constexpr const char* lost_and_found = "lost+found";  // a new ext4 file system brings it along; it cannot be removed
constexpr int lock_attempts = 100;

[[noreturn]] void fail(std::string_view what, std::string_view action) {
  throw Error(Errc::io, fmt::format("{}: {}: {}", printable(what), action, std::strerror(errno)));
}

Descriptor open_directory(int at, const std::string& name) {
  return Descriptor(openat(at, name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
}

bool exists(int at, const std::string& name) {
  struct stat status {};
  return fstatat(at, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0;
}

void sync(int fd, std::string_view what) {
  if (fsync(fd) != 0) fail(what, "cannot flush");
}

bool rename_with(int from_directory, const std::string& from, int to_directory, const std::string& to, unsigned flags) {
  return renameat2(from_directory, from.c_str(), to_directory, to.c_str(), flags) == 0;
}

// What a file system says that knows the flag not, or not for this pair: mounts, overlays, sticky folders.
bool is_unsupported(int error) {
  return error == EINVAL || error == ENOSYS || error == ENOTSUP || error == EBUSY || error == EXDEV || error == EPERM;
}

// Whether something is mounted right there. Bind mounts are on the same device as their folder, so that says nothing.
bool is_mount_point(int parent, const std::string& name) {
  struct statx status {};
  return statx(parent, name.c_str(), AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &status) == 0 &&
         (status.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
}

// A loader looks for these: they go first and come last.
bool makes_a_model(const std::string& name) {
  return name == "config.json" || name.ends_with(".index.json") || name.ends_with("model.safetensors");
}

void write_small_file(int directory, const char* name, std::string_view text, std::string_view shown) {
  const Descriptor file(openat(directory, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (file.get() < 0) fail(shown, "cannot create the journal");
  while (!text.empty()) {
    const ssize_t written = ::write(file.get(), text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(shown, "cannot write the journal");
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  sync(file.get(), shown);
  sync(directory, shown);
}

std::string read_small_file(int directory, const char* name, std::string_view shown) {
  const Descriptor file(openat(directory, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (file.get() < 0) fail(shown, "cannot read the journal of an interrupted run");
  std::string text;
  char block[4096];
  while (true) {
    const ssize_t got = ::read(file.get(), block, sizeof block);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(shown, "cannot read the journal of an interrupted run");
    if (got == 0) return text;
    text.append(block, static_cast<std::size_t>(got));
  }
}

// What a swap inside the target does: entries to remove and entries to move in. Names are bytes, not text, so the
// journal is a list of `-name` and `+name`, each ended by a NUL, and an end mark that tells that it is whole.
struct Journal {
  std::vector<std::string> old_names;
  std::vector<std::string> new_names;

  [[nodiscard]] std::string text() const {
    std::string text;
    for (const std::string& name : old_names) text += '-' + name + '\0';
    for (const std::string& name : new_names) text += '+' + name + '\0';
    return text + "." + '\0';
  }

  static std::optional<Journal> parse(const std::string& text) {
    Journal journal;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = text.find('\0', at);
      if (end == std::string::npos) return std::nullopt;
      if (text[at] == '.') return journal;
      (text[at] == '-' ? journal.old_names : journal.new_names).push_back(text.substr(at + 1, end - at - 1));
      at = end + 1;
    }
    return std::nullopt;
  }
};

// Finishes a swap inside `target`. Every step may have happened already: a new entry that is no longer staged has
// been moved, so what bears its name now must stay. Without a whole journal nothing has happened yet: false.
bool finish_swap(int target, int staging, std::string_view shown) {
  std::optional<Journal> journal = Journal::parse(read_small_file(staging, journal_name, shown));
  if (!journal) return false;
  std::vector<std::string>& old_names = journal->old_names;
  std::vector<std::string>& new_names = journal->new_names;
  std::stable_partition(old_names.begin(), old_names.end(), makes_a_model);
  std::stable_partition(new_names.begin(), new_names.end(),
                        [](const std::string& name) { return !makes_a_model(name); });
  const auto moved = [&](const std::string& name) {
    return std::find(new_names.begin(), new_names.end(), name) != new_names.end() && !exists(staging, name);
  };
  const auto remove_old = [&](const std::string& name) {
    remove_tree(target, name);
    if (exists(target, name))
      fail(shown, "cannot remove " + printable(name) + "; the next run finishes the replacement");
  };
  for (const std::string& name : old_names)
    if (!moved(name)) remove_old(name);
  sync(target, shown);
  for (const std::string& name : new_names) {
    if (!exists(staging, name)) continue;
    if (renameat(staging, name.c_str(), target, name.c_str()) != 0)
      fail(shown, "cannot move " + printable(name) + "; the next run finishes the replacement");
    if (makes_a_model(name)) sync(target, shown);
  }
  sync(target, shown);
  return unlinkat(staging, journal_name, 0) == 0;
}

}  // namespace

std::vector<std::string> list_directory(int directory) {
  std::vector<std::string> names;
  const int copy = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const stream = copy < 0 ? nullptr : fdopendir(copy);
  if (stream == nullptr) {
    if (copy >= 0) close(copy);
    throw Error(Errc::io, fmt::format("cannot list a directory: {}", std::strerror(errno)));
  }
  while (const dirent* const entry = readdir(stream)) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  closedir(stream);
  std::sort(names.begin(), names.end());
  return names;
}

void remove_tree(int parent, const std::string& name, bool itself) {
  if (itself && unlinkat(parent, name.c_str(), 0) == 0) return;
  const Descriptor directory = open_directory(parent, name);
  if (directory.get() >= 0)
    for (const std::string& entry : list_directory(directory.get())) remove_tree(directory.get(), entry);
  if (itself) unlinkat(parent, name.c_str(), AT_REMOVEDIR);
}

Transaction::Transaction(const std::filesystem::path& target, Kind kind, bool overwrite)
    : kind_(kind), overwrite_(overwrite), shown_(target.string()) {
  // Never normalized as text: `link/..` need not be the folder of `link`.
  std::string text = target.string();
  while (text.size() > 1 && text.ends_with('/')) text.pop_back();
  const std::filesystem::path path(text);
  name_ = path.filename().string();
  if (name_.empty() || name_ == "." || name_ == "..")
    throw Error(Errc::usage, fmt::format("{}: an output needs a name of its own", printable(shown_)));
  const std::string folder = path.has_parent_path() ? path.parent_path().string() : std::string(".");
  parent_ = Descriptor(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (parent_.get() < 0) {
    if (errno == ENOENT || errno == ENOTDIR)
      throw Error(Errc::usage, fmt::format("{}: the folder '{}' does not exist", printable(shown_), printable(folder)));
    fail(folder, "cannot open");
  }
  open_work_directory();
}

void Transaction::open_work_directory() {
  struct stat status {};
  const bool there = fstatat(parent_.get(), name_.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0;
  if (there && kind_ == Kind::directory && S_ISDIR(status.st_mode)) {
    // A run that was killed while it swapped inside the target: its new model is complete, so finish that first.
    const Descriptor target = open_directory(parent_.get(), name_);
    const Descriptor staging = target.get() < 0 ? Descriptor() : open_directory(target.get(), ".nibble");
    if (staging.get() >= 0 && exists(staging.get(), journal_name) && flock(staging.get(), LOCK_EX | LOCK_NB) == 0) {
      if (finish_swap(target.get(), staging.get(), shown_)) remove_tree(target.get(), ".nibble");
    }
  }
  if (!overwrite_ && (there || (kind_ == Kind::file && exists(parent_.get(), name_ + manifest_suffix))))
    throw Error(Errc::output_exists, fmt::format("{}: exists; --overwrite replaces it", printable(shown_)));
  if (there && (kind_ == Kind::directory ? !S_ISDIR(status.st_mode) : !S_ISREG(status.st_mode)))
    throw Error(Errc::output_exists, fmt::format("{}: exists and is not a {}: remove it first", printable(shown_),
                                                 kind_ == Kind::directory ? "directory" : "regular file"));
  if (there && kind_ == Kind::directory) {
    const Descriptor target = open_directory(parent_.get(), name_);
    if (target.get() < 0) fail(shown_, "cannot open");
    check_replaceable(list_directory(target.get()));
    struct stat folder {};
    if (fstat(parent_.get(), &folder) != 0) fail(shown_, "cannot read the status of its folder");
    inside_ = folder.st_dev != status.st_dev || is_mount_point(parent_.get(), name_) ||
              faccessat(parent_.get(), ".", W_OK, AT_EACCESS) != 0;
  }
  root_ = inside_ ? open_directory(parent_.get(), name_) : Descriptor(dup(parent_.get()));
  if (root_.get() < 0) fail(shown_, "cannot open");
  work_name_ = inside_ ? ".nibble" : "." + name_ + ".nibble";

  for (int attempt = 0; attempt < lock_attempts; ++attempt) {
    if (mkdirat(root_.get(), work_name_.c_str(), 0777) != 0 && errno != EEXIST) fail(shown_, "cannot create");
    work_ = open_directory(root_.get(), work_name_);
    if (work_.get() < 0) {
      if (errno == ENOENT) continue;
      fail(shown_, "cannot open " + printable(work_name_));
    }
    if (flock(work_.get(), LOCK_EX | LOCK_NB) != 0) {
      work_ = Descriptor();
      if (errno != EWOULDBLOCK) fail(shown_, "cannot lock");
      throw Error(Errc::output_exists, fmt::format("{}: another nibble is writing it", printable(shown_)));
    }
    // Between opening and locking, its owner may have renamed or removed it: what we locked must bear the name.
    struct stat locked {};
    struct stat named {};
    if (fstat(work_.get(), &locked) == 0 &&
        fstatat(root_.get(), work_name_.c_str(), &named, AT_SYMLINK_NOFOLLOW) == 0 && locked.st_ino == named.st_ino &&
        locked.st_dev == named.st_dev) {
      remove_tree(root_.get(), work_name_, false);
      if (!there && exists(parent_.get(), name_)) {  // its owner has just committed
        unlinkat(root_.get(), work_name_.c_str(), AT_REMOVEDIR);
        throw Error(Errc::output_exists, fmt::format("{}: exists; --overwrite replaces it", printable(shown_)));
      }
      return;
    }
    work_ = Descriptor();
  }
  throw Error(Errc::output_exists, fmt::format("{}: another nibble is writing it", printable(shown_)));
}

// Replacing a directory removes all that is in it, so it has to be a model: one of ours, or weights with their
// configuration. An empty one is no loss.
void Transaction::check_replaceable(std::vector<std::string> entries) const {
  std::erase(entries, lost_and_found);
  const auto has = [&](auto&& test) { return std::any_of(entries.begin(), entries.end(), test); };
  const bool ours = has([](const std::string& entry) { return entry == "nibble.json"; });
  const bool config = has([](const std::string& entry) { return entry == "config.json"; });
  const bool weights = has([](const std::string& entry) { return entry.ends_with(".safetensors"); });
  if (!entries.empty() && !ours && !(config && weights))
    throw Error(Errc::output_exists, fmt::format("{}: exists and holds no model: remove it first", printable(shown_)));
}

Transaction::~Transaction() {
  if (committed_ || work_.get() < 0) return;
  try {
    remove_tree(root_.get(), work_name_);
  } catch (const Error&) {
    // What cannot be listed stays; the next run clears it.
  }
}

std::uint64_t Transaction::free_bytes() const {
  struct statvfs status {};
  if (fstatvfs(work_.get(), &status) != 0) fail(shown_, "cannot read the free space");
  return std::uint64_t{status.f_bavail} * status.f_frsize;
}

void Transaction::commit() {
  sync(work_.get(), shown_);
  if (kind_ == Kind::file) {
    commit_file();
  } else if (inside_) {
    commit_inside();
  } else {
    commit_beside();
  }
  committed_ = true;
}

void Transaction::commit_file() {
  const std::string manifest = name_ + manifest_suffix;
  if (overwrite_) {
    if (renameat(work_.get(), staged_file, parent_.get(), name_.c_str()) != 0) fail(shown_, "cannot replace");
  } else if (!rename_with(work_.get(), staged_file, parent_.get(), name_, RENAME_NOREPLACE)) {
    if (errno == EEXIST) throw Error(Errc::output_exists, fmt::format("{}: appeared meanwhile", printable(shown_)));
    if (!is_unsupported(errno)) fail(shown_, "cannot create");
    // Without that flag: a hard link fails where the name is taken.
    if (linkat(work_.get(), staged_file, parent_.get(), name_.c_str(), 0) != 0) fail(shown_, "cannot create");
    unlinkat(work_.get(), staged_file, 0);
  }
  if (exists(work_.get(), staged_manifest) &&
      renameat(work_.get(), staged_manifest, parent_.get(), manifest.c_str()) != 0)
    fail(shown_, "cannot create its manifest");
  sync(parent_.get(), shown_);
  remove_tree(root_.get(), work_name_);
}

void Transaction::commit_beside() {
  if (!exists(parent_.get(), name_)) {
    if (!rename_with(root_.get(), work_name_, parent_.get(), name_, RENAME_NOREPLACE)) {
      if (errno == EEXIST) throw Error(Errc::output_exists, fmt::format("{}: appeared meanwhile", printable(shown_)));
      if (!is_unsupported(errno)) fail(shown_, "cannot create");
      // Without that flag: renaming a directory fails where the name is taken by anything but an empty one.
      if (renameat(root_.get(), work_name_.c_str(), parent_.get(), name_.c_str()) != 0) fail(shown_, "cannot create");
    }
    sync(parent_.get(), shown_);
    return;
  }
  if (!overwrite_) throw Error(Errc::output_exists, fmt::format("{}: appeared meanwhile", printable(shown_)));
  // Locked too, because after the exchange it bears the name that others take for a partial output.
  const Descriptor old = open_directory(parent_.get(), name_);
  if (old.get() < 0 || flock(old.get(), LOCK_EX | LOCK_NB) != 0) fail(shown_, "cannot lock what it replaces");
  if (!rename_with(root_.get(), work_name_, parent_.get(), name_, RENAME_EXCHANGE)) {
    if (!is_unsupported(errno)) fail(shown_, "cannot replace");
    if (renameat(root_.get(), work_name_.c_str(), old.get(), ".nibble") != 0) fail(shown_, "cannot replace");
    root_ = Descriptor(dup(old.get()));
    work_name_ = ".nibble";
    commit_inside();
    return;
  }
  sync(parent_.get(), shown_);
  remove_tree(root_.get(), work_name_);  // the old one, which bears the hidden name now
}

void Transaction::commit_inside() {
  Journal journal{list_directory(root_.get()), list_directory(work_.get())};
  std::erase(journal.old_names, work_name_);
  std::erase(journal.old_names, lost_and_found);
  write_small_file(work_.get(), journal_name, journal.text(), shown_);
  committed_ = true;  // from here on the swap is finished by whoever comes next, if not by us
  finish_swap(root_.get(), work_.get(), shown_);
  remove_tree(root_.get(), work_name_);
  sync(root_.get(), shown_);
}

}  // namespace nibble
