// One file, because what is believed of a directory on disk when a run begins, and what is judged when it ends, are the
// same rules: both sides of them can only be read together.

#include "formats/commit/transaction.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <utility>

#include "formats/directory.hpp"
#include "nibble/error.hpp"

namespace nibble {
namespace {

constexpr const char* inside_name = ".nibble";
constexpr const char* lost_and_found = "lost+found";  // a new ext4 file system brings it along; it cannot be removed

// In the work directory, beside what Swap has there. What came back from an exchange and was not judged yet bears the
// first name, what may be removed the second.
constexpr const char* exchanged_name = "exchanged";
constexpr const char* trash_name = "trash";

// Never no where the system does not tell.
bool may_exist(int at, const char* name) noexcept {
  struct stat status {};
  return fstatat(at, name, &status, AT_SYMLINK_NOFOLLOW) == 0 || errno != ENOENT;
}

// What cannot be looked into is not empty.
bool has_entries(int at, const char* name) {
  if (!may_exist(at, name)) return false;
  const Descriptor directory = open_directory(at, name);
  return directory.get() < 0 || !list_directory(directory.get(), name).empty();
}

// What a file system says that knows the flag not, or not for this pair: mounts, overlays, sticky folders.
bool is_unsupported(int error) {
  return error == EINVAL || error == ENOSYS || error == EOPNOTSUPP || error == EBUSY || error == EXDEV ||
         error == EPERM;
}

// Whether something is mounted right there. Bind mounts are on the same device as their folder, so that says nothing.
bool is_mount_point(int parent, const std::string& name) {
  struct statx status {};
  return statx(parent, name.c_str(), AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &status) == 0 &&
         (status.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
}

// A manifest says so at its beginning.
bool is_manifest(int file) {
  std::array<char, 64> head{};
  const Transfer got = read_all(file, 0, std::as_writable_bytes(std::span(head)));
  return std::string_view(head.data(), got.bytes).find("\"schema_version\"") != std::string_view::npos;
}

bool same_entry(const struct stat& a, const struct stat& b) { return a.st_dev == b.st_dev && a.st_ino == b.st_ino; }

}  // namespace

void Transaction::fail(std::string_view action) const {
  throw Error(Errc::io, fmt::format("{}: {}: {}", printable(shown_), action, std::strerror(errno)));
}

void Transaction::refuse_existing(const std::string& shown, std::string_view fact) const {
  throw Error(Errc::output_exists, fmt::format("{}: {}", printable(shown), fact));
}

bool Transaction::has_entry(int at, const std::string& name) const {
  return status_of(at, name, printable(shown_)).has_value();
}

std::string Transaction::manifest_name() const { return name_ + manifest_suffix; }

std::string Transaction::beside_name() const { return fmt::format(".{}.nibble", name_); }

Transaction::Transaction(const std::filesystem::path& target, Kind kind, const Options& options)
    : kind_(kind), options_(options), shown_(target.string()) {
  // Never normalized as text: `link/..` need not be the folder of `link`.
  std::string text = target.string();
  while (text.size() > 1 && text.ends_with('/')) text.pop_back();
  const std::filesystem::path path(text);
  name_ = path.filename().string();
  if (name_.empty() || name_ == "." || name_ == "..")
    throw Error(Errc::usage, fmt::format("{}: an output needs a name of its own", printable(shown_)));
  const std::string folder_shown = path.has_parent_path() ? path.parent_path().string() : std::string();
  const std::string folder = folder_shown.empty() ? "." : folder_shown;
  parent_ = Descriptor(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (parent_.get() < 0) {
    if (errno == ENOENT || errno == ENOTDIR)
      throw Error(Errc::usage, fmt::format("{}: the folder '{}' does not exist", printable(shown_), printable(folder)));
    throw Error(Errc::io, fmt::format("{}: cannot open: {}", printable(folder), std::strerror(errno)));
  }
  const long longest = fpathconf(parent_.get(), _PC_NAME_MAX);
  const std::size_t room = std::strlen(manifest_suffix);  // ".OUT.nibble" is shorter
  if (longest > 0 && name_.size() + room > static_cast<std::size_t>(longest))
    throw Error(Errc::usage, fmt::format("{}: its name has {} bytes, {} fit beside the names of nibble's own files",
                                         printable(shown_), name_.size(), static_cast<std::size_t>(longest) - room));
  judge_target();
  Descriptor root = inside_ ? open_directory(parent_.get(), name_) : Descriptor(dup(parent_.get()));
  if (root.get() < 0) fail("cannot open");
  work_.emplace(std::move(root), inside_ ? inside_name : beside_name(), shown_, inside_ ? text : folder_shown);
  recover();
  if (!remove_old())
    throw Error(Errc::io, fmt::format("{}: '{}/{}' cannot be removed", printable(shown_), printable(work_->shown()),
                                      Swap::old_name));
  work_->clear();
  if (mkdirat(work_->fd(), Swap::new_name, 0777) != 0) fail("cannot create its work directory");
  new_ = open_directory(work_->fd(), Swap::new_name);
  if (new_.get() < 0) fail("cannot open its work directory");
}

// --- what is in the way ---------------------------------------------------------------------------------------------

void Transaction::judge_target() {
  const auto status = status_of(parent_.get(), name_, printable(shown_));
  const bool is_directory = status && S_ISDIR(status->st_mode);
  if (!options_.overwrite) {
    if (kind_ == Kind::directory && is_directory) {
      const Descriptor target = open_directory(parent_.get(), name_);
      if (target.get() >= 0) refuse_interrupted(target.get(), inside_name);
    }
    refuse_interrupted(parent_.get(), beside_name());
    if (status) refuse_existing(shown_, "exists; --overwrite replaces it");
  }
  if (kind_ == Kind::file) {
    judge_files();
  } else if (status) {
    if (!is_directory) refuse_existing(shown_, "exists and is not a directory: remove it first");
    const Descriptor target = open_directory(parent_.get(), name_);
    if (target.get() < 0) fail("cannot open");
    inside_ = must_be_inside(*status) || has_entry(target.get(), inside_name);
  }
}

void Transaction::judge_files() const {
  judge_file(name_, shown_, options_.may_replace);
  if (options_.with_manifest) judge_file(manifest_name(), shown_ + manifest_suffix, is_manifest);
}

// A file, or nothing yet.
void Transaction::judge_file(const std::string& name, const std::string& shown, bool (*may_replace)(int)) const {
  const auto status = status_of(parent_.get(), name, printable(shown_));
  if (!status) return;
  if (!options_.overwrite) refuse_existing(shown, "exists; --overwrite replaces it");
  if (!S_ISREG(status->st_mode)) refuse_existing(shown, "exists and is not a regular file: remove it first");
  if (status->st_size == 0 || may_replace == nullptr) return;
  const Descriptor file(openat(parent_.get(), name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (file.get() < 0) throw Error(Errc::io, fmt::format("{}: cannot open: {}", printable(shown), std::strerror(errno)));
  if (!may_replace(file.get())) refuse_existing(shown, "exists and is nothing that nibble writes: remove it first");
}

// Replacing a directory removes all that is in it, so it has to be a model: one of ours, or weights with their
// configuration. An empty one is no loss.
void Transaction::judge_entries(const std::vector<std::string>& entries) const {
  const auto has = [&](auto&& test) { return std::any_of(entries.begin(), entries.end(), test); };
  const bool ours = has([](const std::string& entry) { return entry == "nibble.json"; });
  const bool config = has([](const std::string& entry) { return entry == "config.json"; });
  const bool weights = has([](const std::string& entry) { return entry.ends_with(".safetensors"); });
  if (!entries.empty() && !ours && !(config && weights))
    refuse_existing(shown_, "exists and holds no model: remove it first");
}

// Of a directory that is replaced: what is there on purpose.
std::vector<std::string> Transaction::entries_of(int directory) const {
  std::vector<std::string> entries = list_directory(directory, printable(shown_));
  std::erase(entries, lost_and_found);
  if (inside_) std::erase(entries, inside_name);
  return entries;
}

bool Transaction::must_be_inside(const struct stat& status) const {
  struct stat folder {};
  if (fstat(parent_.get(), &folder) != 0) fail("cannot read the status of its folder");
  return folder.st_dev != status.st_dev || is_mount_point(parent_.get(), name_) ||
         faccessat(parent_.get(), ".", W_OK, AT_EACCESS) != 0;
}

// A replacement that was stopped half-way is finished by who may replace, and left alone by everybody else.
void Transaction::refuse_interrupted(int root, const std::string& work_name) const {
  const Descriptor work = open_directory(root, work_name);
  if (work.get() < 0) return;
  const Descriptor target = root == parent_.get() ? Descriptor(dup(root)) : open_directory(parent_.get(), name_);
  const Swap::Journal journal = Swap(target.get(), work.get(), shown_).journal();
  if (journal.is_there && journal.problem.empty() && flock(work.get(), LOCK_SH | LOCK_NB) == 0)
    refuse_existing(shown_, "its replacement was interrupted; --overwrite finishes that");
}

// What a run before this one left: a replacement to finish, old entries that nothing is known about, or remains. After
// it, it is known what is to be replaced.
void Transaction::recover() {
  const int work = work_->fd();
  const bool done = has_entry(work, Swap::done_name);
  const Swap swap(inside_ ? work_->root() : parent_.get(), work, shown_);
  const Swap::Journal journal = done ? Swap::Journal{} : swap.journal();
  if (journal.is_there && journal.problem.empty()) {
    judge_journal(journal);
    swap.finish(journal.steps);
  } else if (!done && has_entries(work, Swap::old_name)) {
    refuse_existing(work_->shown() + "/" + Swap::old_name,
                    "holds what an interrupted run has replaced: move it away first");
  } else if (journal.is_there) {
    warnings_.push_back(
        fmt::format("{}/{} is ignored: {}", printable(work_->shown()), Swap::journal_name, journal.problem));
  }
  if (const Descriptor back = open_directory(work, exchanged_name); back.get() >= 0)
    judge_entries(entries_of(back.get()));

  const auto status = status_of(parent_.get(), name_, printable(shown_));
  if (kind_ != Kind::directory || !status) return;
  if (!options_.overwrite) refuse_existing(shown_, "exists; --overwrite replaces it");  // its owner has just committed
  const Descriptor old = open_directory(parent_.get(), name_);
  Old before;
  if (old.get() < 0 || fstat(old.get(), &before.status) != 0) fail("cannot open");
  before.entries = entries_of(old.get());
  judge_entries(before.entries);
  old_ = std::move(before);
}

// Whatever it says: nothing but what this run may replace.
void Transaction::judge_journal(const Swap::Journal& journal) const {
  for (const Swap::Step& step : journal.steps) {
    const bool is_ours = inside_ ? step.name != inside_name && step.name != lost_and_found
                                 : step.name == name_ || step.name == manifest_name();
    if (step.action != Swap::Action::barrier && !is_ours)
      refuse_existing(
          work_->shown() + "/" + Swap::journal_name,
          fmt::format("is about '{}', which is not ours to replace: remove it first", printable(step.name)));
  }
  if (!inside_) return;
  std::vector<std::string> entries = entries_of(work_->root());
  if (const Descriptor old = open_directory(work_->fd(), Swap::old_name); old.get() >= 0)
    for (std::string& entry : list_directory(old.get(), printable(shown_))) entries.push_back(std::move(entry));
  judge_entries(entries);
}

std::uint64_t Transaction::free_bytes() const {
  struct statvfs status {};
  if (fstatvfs(work_->fd(), &status) != 0) fail("cannot read the free space");
  return std::uint64_t{status.f_bavail} * status.f_frsize;
}

// --- the commit -----------------------------------------------------------------------------------------------------

void Transaction::commit() {
  if (kind_ == Kind::file) {
    commit_file();
  } else if (inside_) {
    commit_inside();
  } else {
    commit_beside();
  }
  finish_commit();
}

// What was replaced goes before the journal, which says that all of it was.
bool Transaction::remove_old() const noexcept {
  remove_tree(work_->fd(), Swap::old_name);
  return !may_exist(work_->fd(), Swap::old_name);
}

// From here on the new output is there, and nothing may say otherwise.
void Transaction::finish_commit() noexcept {
  if (remove_old() && work_->remove()) return;
  work_->keep();
  try {
    remains_ = fmt::format("{}: what it replaced could not be removed completely: the rest is in {}", printable(shown_),
                           printable(work_->shown()));
  } catch (...) {  // no memory for a warning
  }
}

// Nobody gets permissions by a replacement. What has a namesake in the old directory gets none that that did not give
// to group and others; of the rest, none that some entry there did not.
void Transaction::narrow_modes(int old, const std::vector<std::string>& entries) const {
  constexpr mode_t of_others = 077;
  mode_t common = of_others;
  for (const std::string& name : entries)
    if (const auto status = status_of(old, name, printable(shown_)); status && S_ISREG(status->st_mode))
      common &= status->st_mode;
  for (const std::string& name : list_directory(new_.get(), printable(shown_))) {
    const auto mine = status_of(new_.get(), name, printable(shown_));
    if (!mine) continue;
    const bool has_namesake = std::find(entries.begin(), entries.end(), name) != entries.end();
    const auto namesake = has_namesake ? status_of(old, name, printable(shown_)) : std::nullopt;
    const mode_t allowed = namesake ? namesake->st_mode : S_ISREG(mine->st_mode) ? common : of_others;
    const mode_t mode = mine->st_mode & 07777 & ~(of_others & ~allowed);
    if (mode != (mine->st_mode & 07777) && fchmodat(new_.get(), name.c_str(), mode, 0) != 0)
      fail("cannot set the mode of its files");
  }
}

void Transaction::commit_file() {
  judge_files();  // again: the run took a while
  const bool replaces = has_entry(parent_.get(), name_);
  if (replaces) narrow_modes(parent_.get(), {name_, manifest_name()});
  if (fsync(new_.get()) != 0 || fsync(work_->fd()) != 0) fail("cannot flush");
  if (mkdirat(work_->fd(), Swap::old_name, 0700) != 0) fail("cannot create its work directory");

  // The manifest goes first and comes last: at no time does it tell of another file.
  const Swap swap(parent_.get(), work_->fd(), shown_);
  Swap::Steps steps;
  if (options_.with_manifest && has_entry(parent_.get(), manifest_name()))
    steps.push_back(swap.step(Swap::Action::take_out, manifest_name()));
  steps.push_back({});
  steps.push_back(swap.step(replaces ? Swap::Action::exchange : Swap::Action::put_in, name_));
  steps.push_back({});
  if (has_entry(new_.get(), manifest_name())) steps.push_back(swap.step(Swap::Action::put_in, manifest_name()));
  steps.push_back({});
  run(swap, steps);
}

// What could neither be carried out nor undone is the next run's.
void Transaction::run(const Swap& swap, const Swap::Steps& steps) {
  try {
    swap.run(steps);
  } catch (...) {
    if (may_exist(work_->fd(), Swap::journal_name)) work_->keep();
    throw;
  }
}

void Transaction::commit_beside() {
  if (!old_) return publish();
  const Descriptor old = open_directory(parent_.get(), name_);
  if (old.get() < 0) refuse_existing(shown_, "was changed meanwhile; nothing is replaced");
  narrow_modes(old.get(), old_->entries);
  if (fchmod(new_.get(), old_->status.st_mode & 07777) != 0) fail("cannot set its mode");
  if (exchange()) return;

  // The file system cannot do that: the work directory moves into the old one, and the entries change places.
  if (!work_->move(Descriptor(dup(old.get())), inside_name, shown_)) fail("cannot replace");
  inside_ = true;
  commit_inside();
}

// Where nothing was: nothing may be there now.
void Transaction::publish() {
  if (fsync(new_.get()) != 0 || fsync(work_->fd()) != 0) fail("cannot flush");
  if (renameat2(work_->fd(), Swap::new_name, parent_.get(), name_.c_str(), RENAME_NOREPLACE) != 0) {
    if (errno == EEXIST) refuse_existing(shown_, "appeared meanwhile");
    if (!is_unsupported(errno)) fail("cannot create");
    if (may_exist(parent_.get(), name_.c_str())) refuse_existing(shown_, "appeared meanwhile");
    // Without that flag: renaming a directory fails where the name is taken by anything but an empty one.
    if (renameat(work_->fd(), Swap::new_name, parent_.get(), name_.c_str()) != 0) fail("cannot create");
  }
  if (fsync(parent_.get()) == 0) return;
  const int error = errno;
  (void)renameat(parent_.get(), name_.c_str(), work_->fd(), Swap::new_name);
  errno = error;
  fail("cannot flush");
}

// False if the file system has no such call for these two.
bool Transaction::exchange() {
  if (fsync(new_.get()) != 0 || fsync(work_->fd()) != 0) fail("cannot flush");
  if (renameat(work_->fd(), Swap::new_name, work_->fd(), exchanged_name) != 0) fail("cannot replace");
  const auto swap_places = [&] {
    return renameat2(work_->fd(), exchanged_name, parent_.get(), name_.c_str(), RENAME_EXCHANGE) == 0;
  };
  const auto set_name = [&](const char* name) { return renameat(work_->fd(), exchanged_name, work_->fd(), name) == 0; };
  if (!swap_places()) {
    const int error = errno;
    (void)set_name(Swap::new_name);
    errno = error;
    if (!is_unsupported(error)) fail("cannot replace");
    return false;
  }
  try {
    // What came back is what counts, not what was there before.
    const Descriptor back = open_directory(work_->fd(), exchanged_name);
    struct stat status {};
    if (back.get() < 0 || fstat(back.get(), &status) != 0 || !same_entry(status, old_->status))
      refuse_existing(shown_, "was changed meanwhile; nothing is replaced");
    for (const std::string& entry : entries_of(back.get()))
      if (!std::binary_search(old_->entries.begin(), old_->entries.end(), entry))
        refuse_existing(shown_, fmt::format("'{}' appeared in it meanwhile; nothing is replaced", printable(entry)));
    if (fsync(parent_.get()) != 0) fail("cannot flush");
    if (!set_name(trash_name)) fail("cannot replace");
  } catch (...) {
    if (!swap_places() || !set_name(Swap::new_name)) work_->keep();
    throw;
  }
  return true;
}

void Transaction::commit_inside() {
  const std::vector<std::string> entries = entries_of(work_->root());
  for (const std::string& entry : entries)
    if (!std::binary_search(old_->entries.begin(), old_->entries.end(), entry))
      refuse_existing(shown_, fmt::format("'{}' appeared in it meanwhile; nothing is replaced", printable(entry)));
  narrow_modes(work_->root(), entries);
  if (fsync(new_.get()) != 0 || fsync(work_->fd()) != 0) fail("cannot flush");
  if (mkdirat(work_->fd(), Swap::old_name, 0700) != 0) fail("cannot create its work directory");
  const Swap swap(work_->root(), work_->fd(), shown_);
  run(swap, swap.replace(entries));
}

}  // namespace nibble
