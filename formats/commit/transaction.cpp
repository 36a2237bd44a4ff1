// One file, because the rules by which a directory on disk is trusted when a run begins, and by which it is checked
// when it ends, are the same: both can only be read together.

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
#include <set>
#include <string_view>
#include <utility>

#include "core/files/directory.hpp"
#include "formats/commit/replaceable.hpp"
#include "formats/containers/container.hpp"
#include "nibble/error.hpp"

namespace nibble {
namespace {

constexpr const char* inside_name = ".nibble";
constexpr const char* lost_and_found = "lost+found";  // a new ext4 file system brings it along; it cannot be removed

// In the work directory, beside the entries of Swap. An old output that an exchange has moved here and that is not
// judged yet has the first name; one that may be removed has the second.
constexpr const char* exchanged_name = "exchanged";
constexpr const char* trash_name = "trash";

constexpr mode_t of_others = S_IRWXG | S_IRWXO;

// Never false if the system does not tell.
bool may_exist(int at, const char* name) noexcept {
  struct stat status {};
  return fstatat(at, name, &status, AT_SYMLINK_NOFOLLOW) == 0 || errno != ENOENT;
}

// A directory that cannot be read counts as not empty.
bool has_entries(int at, const char* name) {
  if (!may_exist(at, name)) return false;
  const Descriptor directory = open_directory(at, name);
  return directory.get() < 0 || !list_directory(directory.get(), name).empty();
}

// The errors of a file system that does not support the flag, or not for these two: mounts, overlays, sticky folders.
bool is_unsupported(int error) {
  return error == EINVAL || error == ENOSYS || error == EOPNOTSUPP || error == EBUSY || error == EXDEV ||
         error == EPERM;
}

// A manifest is recognized by its beginning.
bool is_manifest(int file) {
  std::array<char, 64> head{};
  const Transfer got = read_all(file, 0, std::as_writable_bytes(std::span(head)));
  return std::string_view(head.data(), got.bytes).find("\"schema_version\"") != std::string_view::npos;
}

// One of ours, or weights with their configuration.
bool is_model(const std::vector<std::string>& entries) {
  const auto has = [&](auto&& test) { return std::any_of(entries.begin(), entries.end(), test); };
  return has([](const std::string& entry) { return entry == "nibble.json"; }) ||
         (has([](const std::string& entry) { return entry == "config.json"; }) &&
          has([](const std::string& entry) { return has_weight_extension(entry); }));
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

constexpr Remedy replaced{Remedy::Kind::replace_output};
constexpr Remedy finished{Remedy::Kind::finish_replacement};

bool same_entry(const struct stat& a, const struct stat& b) { return a.st_dev == b.st_dev && a.st_ino == b.st_ino; }

}  // namespace

void Transaction::fail(std::string_view action) const {
  throw Error(Errc::io, printable(shown_), fmt::format("{}: {}", action, std::strerror(errno)));
}

void Transaction::refuse_existing(const std::string& shown, std::string_view fact, Remedy remedy) const {
  throw Error(Errc::output_exists, printable(shown), fact, remedy);
}

bool Transaction::has_entry(int at, const std::string& name) const {
  return status_of(at, name, printable(shown_)).has_value();
}

std::string Transaction::manifest_name() const { return name_ + manifest_suffix; }

std::string Transaction::beside_name() const { return fmt::format(".{}.nibble", name_); }

Transaction::Transaction(const std::filesystem::path& target, Kind kind, const Options& options)
    : Transaction(look, target, kind, options) {
  if (keeps_ && has_entry(parent_.get(), beside_name())) {
    // An earlier run found nothing that stays.
    inside_ = false;
    enter();
    work_.reset();
    inside_ = true;
  }
  enter();
  if (mkdirat(work_->fd(), Swap::new_name, 0777) != 0) fail("cannot create its work directory");
  new_ = open_directory(work_->fd(), Swap::new_name);
  if (new_.get() < 0) fail("cannot open its work directory");
  options_.paths = {};  // their owner does not keep them
}

// Takes the work directory, and finishes or clears what an earlier run left in it.
void Transaction::enter() {
  WorkLocation location = work_location();
  work_.emplace(std::move(location.root), location.name, shown_, location.path);
  judge_remains(work_->fd(), work_->shown());
  recover();
  if (!remove_old())
    throw Error(Errc::io, printable(shown_),
                fmt::format("'{}/{}' cannot be removed", printable(work_->shown()), Swap::old_name));
  work_->clear();
}

Transaction::Transaction(Look /*unused*/, const std::filesystem::path& target, Kind kind, const Options& options)
    : kind_(kind), options_(options), shown_(target.string()) {
  // Never normalized as text: `link/..` need not be the folder of `link`.
  std::string text = target.string();
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

std::uint64_t Transaction::check(const std::filesystem::path& target, Kind kind, const Options& options) {
  const Transaction transaction(look, target, kind, options);
  transaction.judge_work_location();
  transaction.judge_as_it_is();
  return transaction.free_bytes();
}

// --- what is in the way ---------------------------------------------------------------------------------------------

void Transaction::judge_target() {
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
    if (status) refuse_existing(shown_, "exists", replaced);
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
void Transaction::judge_permission(const std::string& name, const std::string& shown, const struct stat& status) const {
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
void Transaction::judge_folders(int directory, const std::vector<std::string>& leaving) const {
  for (const std::string& entry : leaving) {
    const auto status = status_of(directory, entry, printable(shown_));
    if (status && S_ISDIR(status->st_mode) && faccessat(directory, entry.c_str(), W_OK, AT_EACCESS) != 0)
      fail(fmt::format("cannot replace the folder '{}'", printable(entry)));
  }
}

Transaction::WorkLocation Transaction::work_location() const {
  Descriptor root = inside_ ? open_directory(parent_.get(), name_) : Descriptor(dup(parent_.get()));
  if (root.get() < 0) fail("cannot open");
  return {std::move(root), inside_ ? inside_name : beside_name(),
          inside_ ? path_.string() : path_.parent_path().string()};
}

// Throws what the run would throw before it looks at what an earlier run left to finish.
void Transaction::judge_work_location() const {
  const WorkLocation location = work_location();
  const Descriptor work = WorkDirectory::check(location.root.get(), location.name, shown_, location.path);
  if (work.get() >= 0) judge_remains(work.get(), WorkDirectory::path_of(location.path, location.name));
}

// Throws what recover() would throw, unless the work directory of an earlier run changes that: then only the run itself
// can tell.
void Transaction::judge_as_it_is() const {
  const auto status = status_of(parent_.get(), name_, printable(shown_));
  if (kind_ == Kind::file || !status || has_entry(parent_.get(), beside_name())) return;
  const Descriptor old = open_directory(parent_.get(), name_);
  if (old.get() < 0) fail("cannot open");
  if (has_entry(old.get(), inside_name)) return;
  (void)judge_old(old.get());
}

Transaction::Judged Transaction::judge_files() const {
  Judged judged;
  judged.file = judge_file(parent_.get(), name_, shown_, options_.may_replace);
  if (options_.with_manifest)
    judged.manifest = judge_file(parent_.get(), manifest_name(), shown_ + manifest_suffix, is_manifest);
  return judged;
}

// A file, or nothing: returns the inode of what was judged.
std::uint64_t Transaction::judge_file(int at, const std::string& name, const std::string& shown,
                                      bool (*may_replace)(int)) const {
  const auto status = status_of(at, name, printable(shown_));
  if (!status) return 0;
  if (!options_.overwrite) refuse_existing(shown, "exists", replaced);
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

// Only a model is replaced, or an empty directory.
void Transaction::judge_entries(const std::vector<std::string>& entries) const {
  if (!entries.empty() && !is_model(entries)) refuse_existing(shown_, "exists and holds no model: remove it first");
}

// The entries of a directory that may be replaced.
std::vector<std::string> Transaction::judge_old(int directory) const {
  std::vector<std::string> entries = entries_of(directory);
  judge_entries(entries);
  for (const std::string& entry : entries)
    if (is_mount_point(directory, entry.c_str()))
      refuse_existing(shown_, fmt::format("contains the mount point '{}': unmount it first", printable(entry)));
  return entries;
}

// The entries that leave a directory when these paths come in. What is lost with them is in the way.
std::vector<std::string> Transaction::judge_leaving(int directory, std::span<const std::string> fresh) const {
  Replaceable found = replaceable(directory, entries_of(directory), fresh, printable(shown_));
  if (!found.lost.empty())
    refuse_existing(shown_, fmt::format("contains '{}', which is in a folder that the new output replaces and lacks "
                                        "it: move it away first",
                                        printable(found.lost)));
  return std::move(found.entries);
}

// Entries that appeared in a directory after it was judged must not be removed with it.
void Transaction::judge_tree(int directory, const std::vector<std::string>& entries,
                             std::span<const std::string> fresh) const {
  for (const std::string& path : tree_of(directory, entries, fresh))
    if (!std::binary_search(old_->tree.begin(), old_->tree.end(), path))
      refuse_existing(shown_, fmt::format("'{}' appeared in it meanwhile; nothing is replaced", printable(path)));
}

// What is there on purpose in a directory that is replaced.
std::vector<std::string> Transaction::entries_of(int directory) const {
  std::vector<std::string> entries = list_directory(directory, printable(shown_));
  if (inside_) {
    std::erase(entries, lost_and_found);
    std::erase(entries, inside_name);
  }
  return entries;
}

// With what is in the folders that leave when the paths `fresh` come in. The other folders stay: they may be large, or
// belong to somebody else.
std::vector<std::string> Transaction::tree_of(int directory, const std::vector<std::string>& entries,
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

bool Transaction::must_be_inside(const struct stat& status) const {
  struct stat folder {};
  if (fstat(parent_.get(), &folder) != 0) fail("cannot read the status of its folder");
  return folder.st_dev != status.st_dev || is_mount_point(parent_.get(), name_.c_str()) ||
         faccessat(parent_.get(), ".", W_OK, AT_EACCESS) != 0;
}

// Only a run that may replace the output finishes a replacement that was stopped half-way; any other refuses.
void Transaction::refuse_interrupted(int root, const std::string& work_name) const {
  const Descriptor work = open_directory(root, work_name);
  if (work.get() < 0) return;
  const Descriptor target = root == parent_.get() ? Descriptor(dup(root)) : open_directory(parent_.get(), name_);
  const Swap::Journal journal = Swap(target.get(), work.get(), shown_).journal();
  if (journal.is_there && journal.problem.empty() && flock(work.get(), LOCK_SH | LOCK_NB) == 0)
    refuse_existing(shown_, "its replacement was interrupted", finished);
}

// Somebody else may have created an entry with the name of the work directory.
void Transaction::judge_remains(int work, const std::string& shown) const {
  constexpr std::array<std::string_view, 6> ours{Swap::journal_name, Swap::done_name, Swap::new_name,
                                                 Swap::old_name,     exchanged_name,  trash_name};
  for (const std::string& entry : list_directory(work, printable(shown)))
    if (std::find(ours.begin(), ours.end(), entry) == ours.end() && !entry.starts_with(removed_prefix))
      refuse_existing(shown,
                      fmt::format("contains '{}', which nibble did not create: move it away first", printable(entry)));
}

// Handles what an earlier run left: a replacement to finish, old entries of unknown origin, or remains. Afterwards it
// is known what will be replaced.
void Transaction::recover() {
  const int work = work_->fd();
  const bool done = has_entry(work, Swap::done_name);
  const Swap swap(inside_ ? work_->root() : parent_.get(), work, shown_);
  Swap::Journal journal = done ? Swap::Journal{} : swap.journal();
  if (kind_ == Kind::directory && !inside_ && journal.problem.empty()) journal.problem = "no run writes one here";
  if (journal.is_there && journal.problem.empty()) {
    finish_swap(swap, journal);
  } else if (!done && has_entries(work, Swap::old_name)) {
    refuse_existing(work_->shown() + "/" + Swap::old_name,
                    "contains the output that an interrupted run replaced: move it away first");
  } else if (journal.is_there) {
    warnings_.push_back(
        fmt::format("{}/{} is ignored: {}", printable(work_->shown()), Swap::journal_name, journal.problem));
  }
  if (has_entry(work, exchanged_name)) {
    const Descriptor back = open_directory(work, exchanged_name);
    if (back.get() < 0) fail("cannot open the output that an interrupted run replaced");
    if (const auto entries = list_directory(back.get(), printable(shown_)); !entries.empty() && !is_model(entries))
      refuse_existing(work_->shown() + "/" + exchanged_name,
                      "contains the output that an interrupted run replaced: move it away first");
  }

  const auto status = status_of(parent_.get(), name_, printable(shown_));
  if (kind_ != Kind::directory || !status) return;
  if (!options_.overwrite) refuse_existing(shown_, "exists", replaced);  // its owner has just committed
  const Descriptor old = open_directory(parent_.get(), name_);
  Old before;
  if (old.get() < 0 || fstat(old.get(), &before.status) != 0) fail("cannot open");
  before.tree = tree_of(old.get(), judge_old(old.get()), options_.paths);
  old_ = std::move(before);
}

void Transaction::finish_swap(const Swap& swap, const Swap::Journal& journal) {
  judge_journal(journal);
  try {
    // A killed run may not have come to this. Of a directory, judge_journal() has looked at what left it, too.
    swap.finish(journal.steps, [&] {
      if (kind_ == Kind::file) judge_replaced();
    });
  } catch (const Error& error) {
    if (error.code() != Errc::output_exists) throw;
    throw Error(Errc::output_exists, printable(shown_),
                fmt::format("an interrupted run replaced a part of it, and it was changed since: the rest of the old "
                            "output is in {}/{}, the rest of the new one in {}/{}; move them away first",
                            printable(work_->shown()), Swap::old_name, printable(work_->shown()), Swap::new_name));
  }
}

// Whatever the journal says, it may only name what this run may replace.
void Transaction::judge_journal(const Swap::Journal& journal) const {
  const std::string shown = work_->shown() + "/" + Swap::journal_name;
  if (!options_.overwrite) refuse_existing(shown_, "its replacement was interrupted", finished);
  const auto refuse_name = [&](const Swap::Step& step) {
    refuse_existing(shown,
                    fmt::format("names '{}', which nibble may not replace: remove it first", printable(step.name)));
  };
  for (const Swap::Step& step : journal.steps) {
    const bool is_ours = inside_ ? !step.name.starts_with('.') && step.name != lost_and_found
                                 : step.name == name_ || (options_.with_manifest && step.name == manifest_name());
    if (step.action != Swap::Action::barrier && !is_ours) refuse_name(step);
  }
  if (!inside_) return;
  // What has left the target counts only as far as the journal tells of it.
  std::vector<std::string> entries = entries_of(work_->root());
  if (const Descriptor old = open_directory(work_->fd(), Swap::old_name); old.get() >= 0)
    for (const Swap::Step& step : journal.steps)
      if (step.action != Swap::Action::barrier)
        if (const auto status = status_of(old.get(), step.name, printable(shown_));
            status && status->st_ino == step.old_inode)
          entries.push_back(step.name);
  judge_entries(entries);
  std::set<std::string_view> coming;
  for (const Swap::Step& step : journal.steps)
    if (step.action == Swap::Action::put_in) coming.insert(step.name);
  for (const Swap::Step& step : journal.steps)
    if (step.action == Swap::Action::take_out && !is_model_file(step.name) && !coming.contains(step.name))
      refuse_name(step);
}

std::uint64_t Transaction::free_bytes() const {
  const Descriptor target = inside_ ? open_directory(parent_.get(), name_) : Descriptor();
  struct statvfs status {};
  if (fstatvfs(inside_ ? target.get() : parent_.get(), &status) != 0) fail("cannot read the free space");
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

// The replaced entries are removed before the journal, which says that all of them were replaced.
bool Transaction::remove_old() const noexcept {
  if (!may_exist(work_->fd(), Swap::old_name)) return true;
  remove_tree(work_->fd(), Swap::old_name);
  (void)fsync(work_->fd());
  return !may_exist(work_->fd(), Swap::old_name);
}

// From here on the new output is in place, so nothing may report a failure.
void Transaction::finish_commit() noexcept {
  if (remove_old() && work_->remove()) return;
  work_->keep();
  try {
    remains_ = fmt::format("{}: the old output could not be removed completely: the rest is in {}", printable(shown_),
                           printable(work_->shown()));
  } catch (...) {  // no memory for a warning
  }
}

// The mode of an entry that replaces another: to others than its owner it gives what the old one gave, and to
// its group only if that is the old one's.
mode_t Transaction::narrowed(int fresh, const std::string& name, const struct stat& mine,
                             const struct stat& old) const {
  const bool same_group =
      mine.st_gid == old.st_gid || fchownat(fresh, name.c_str(), uid_t(-1), old.st_gid, AT_SYMLINK_NOFOLLOW) == 0;
  return mine.st_mode & (S_IRWXU | (same_group ? old.st_mode & of_others : old.st_mode & S_IRWXO));
}

// A replacement grants nobody new permissions. An entry with a namesake in the old directory gets only permissions that
// the namesake had; any other file gets only permissions that some old file had.
void Transaction::narrow(int fresh, int old, const std::vector<std::string>& entries, mode_t inherited) const {
  for (const std::string& name : entries)
    if (const auto status = status_of(old, name, printable(shown_)); status && S_ISREG(status->st_mode))
      inherited &= status->st_mode;
  for (const std::string& name : list_directory(fresh, printable(shown_))) {
    const auto mine = status_of(fresh, name, printable(shown_));
    if (!mine) continue;
    const bool is_directory = S_ISDIR(mine->st_mode);
    const bool has_namesake = std::find(entries.begin(), entries.end(), name) != entries.end();
    auto namesake = has_namesake ? status_of(old, name, printable(shown_)) : std::nullopt;
    // Whoever could read a file may enter the folder that replaces it.
    if (is_directory && namesake && S_ISREG(namesake->st_mode)) namesake->st_mode |= (namesake->st_mode & 0444) >> 2;
    const mode_t mode = namesake       ? narrowed(fresh, name, *mine, *namesake)
                        : is_directory ? mine->st_mode & 07777
                                       : mine->st_mode & (S_IRWXU | inherited);
    if (mode != (mine->st_mode & 07777) && fchmodat(fresh, name.c_str(), mode, 0) != 0)
      fail("cannot set the mode of its files");
    if (!is_directory) continue;
    const Descriptor inner = open_directory(fresh, name);
    if (inner.get() < 0) fail("cannot open a folder in it");
    const bool has_old = namesake && S_ISDIR(namesake->st_mode);
    const Descriptor old_inner = has_old ? open_directory(old, name) : Descriptor();
    if (has_old && old_inner.get() < 0) fail("cannot open a folder in it");
    narrow(inner.get(), old_inner.get(),
           has_old ? list_directory(old_inner.get(), printable(shown_)) : std::vector<std::string>{}, inherited);
  }
}

void Transaction::commit_file() {
  std::vector<std::string> names{name_};
  if (options_.with_manifest) names.push_back(manifest_name());
  narrow(new_.get(), parent_.get(), names, of_others);
  if (mkdirat(work_->fd(), Swap::old_name, 0700) != 0) fail("cannot create its work directory");
  if (fsync(new_.get()) != 0 || fsync(work_->fd()) != 0) fail("cannot flush");

  // Two names cannot change in one step. So the old manifest goes first and the new one comes last, with a barrier on
  // either side of the file: what is seen between is a file without a manifest, which claims nothing. The journal
  // makes the three steps one: they are all undone if one fails, and finished by the next run after a crash.
  const Judged judged = judge_files();  // again: the run took a while
  const Swap swap(parent_.get(), work_->fd(), shown_);
  Swap::Steps steps;
  if (judged.manifest != 0) steps.push_back({Swap::Action::take_out, manifest_name(), judged.manifest, 0});
  steps.push_back({});
  steps.push_back(swap.step(Swap::Action::put_in, name_));
  if (judged.file != 0) steps.back().action = Swap::Action::exchange;
  steps.back().old_inode = judged.file;
  steps.push_back({});
  if (has_entry(new_.get(), manifest_name())) steps.push_back(swap.step(Swap::Action::put_in, manifest_name()));
  steps.push_back({});
  run(swap, steps, [&] { judge_replaced(); });
}

// Once more what has come out: it may have been written to since. A file that was exchanged is in
// `new`, what was taken out is in `old`.
void Transaction::judge_replaced() const {
  for (const char* const folder : {Swap::new_name, Swap::old_name}) {
    const Descriptor directory = open_directory(work_->fd(), folder);
    if (directory.get() < 0) fail("cannot open the old output");
    judge_file(directory.get(), name_, shown_, options_.may_replace);
    if (options_.with_manifest && std::string_view(folder) == Swap::old_name)
      judge_file(directory.get(), manifest_name(), shown_ + manifest_suffix, is_manifest);
  }
}

// The next run handles what could neither be carried out nor undone.
void Transaction::run(const Swap& swap, const Swap::Steps& steps, const std::function<void()>& judge) {
  try {
    swap.run(steps, judge);
  } catch (...) {
    // A journal that stayed needs `old`.
    if (may_exist(work_->fd(), Swap::journal_name) || unlinkat(work_->fd(), Swap::old_name, AT_REMOVEDIR) != 0)
      work_->keep();
    throw;
  }
}

void Transaction::commit_beside() {
  if (!old_) return publish();
  const Descriptor old = open_directory(parent_.get(), name_);
  struct stat status {};
  if (old.get() < 0 || fstat(old.get(), &status) != 0) fail("cannot open");
  narrow(new_.get(), old.get(), list_directory(old.get(), printable(shown_)), of_others);
  struct stat mine {};
  if (fstat(new_.get(), &mine) != 0) fail("cannot read the status of its work directory");
  mine.st_mode = status.st_mode & 07777;
  const mode_t mode = (status.st_mode & 07000) | narrowed(work_->fd(), Swap::new_name, mine, status);
  if (fchmod(new_.get(), mode | S_IRWXU) != 0) fail("cannot set its mode");
  const std::vector<std::string> fresh = list_tree(new_.get(), printable(shown_));
  judge_tree(old.get(), entries_of(old.get()), fresh);
  const auto all_leave = [&](int directory) {
    return judge_leaving(directory, fresh).size() == list_directory(directory, printable(shown_)).size();
  };
  if (all_leave(old.get()) && exchange(mode, fresh, all_leave)) return;

  // The file system cannot do that, or something came that stays: the work directory moves into the old one, and the
  // entries are exchanged.
  if (status.st_uid != geteuid())
    throw Error(Errc::io, printable(shown_), "cannot replace what belongs to another user");
  if (!work_->move(Descriptor(dup(old.get())), inside_name, shown_)) fail("cannot replace");
  inside_ = true;
  commit_inside();
}

// For a target that did not exist: it must not exist now either.
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
bool Transaction::exchange(mode_t mode, std::span<const std::string> fresh, const std::function<bool(int)>& all_leave) {
  if (fsync(new_.get()) != 0 || fsync(work_->fd()) != 0) fail("cannot flush");
  if (renameat(work_->fd(), Swap::new_name, work_->fd(), exchanged_name) != 0) fail("cannot replace");
  const auto swap_entries = [&] {
    return renameat2(work_->fd(), exchanged_name, parent_.get(), name_.c_str(), RENAME_EXCHANGE) == 0;
  };
  const auto set_name = [&](const char* name) { return renameat(work_->fd(), exchanged_name, work_->fd(), name) == 0; };
  if (!swap_entries()) {
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
    if (back.get() < 0 || fstat(back.get(), &status) != 0) fail("cannot open the old output");
    if (!same_entry(status, old_->status)) refuse_existing(shown_, "was changed meanwhile; nothing is replaced");
    judge_tree(back.get(), entries_of(back.get()), fresh);
    if (!all_leave(back.get())) refuse_existing(shown_, "was changed meanwhile; nothing is replaced");
    if (fchmod(new_.get(), mode) != 0) fail("cannot set its mode");
    if (fsync(parent_.get()) != 0) fail("cannot flush");
    if (!set_name(trash_name)) fail("cannot replace");
  } catch (...) {
    // The new entries are removed only when they are no longer needed.
    const bool is_back = swap_entries() && set_name(Swap::new_name);
    if (!is_back || fsync(parent_.get()) != 0 || fsync(work_->fd()) != 0) work_->keep();
    throw;
  }
  (void)fsync(work_->fd());  // nothing in it is removed before its name says that it may be
  return true;
}

void Transaction::commit_inside() {
  const std::vector<std::string> entries = entries_of(work_->root());
  const std::vector<std::string> fresh = list_tree(new_.get(), printable(shown_));
  judge_tree(work_->root(), entries, fresh);
  const std::vector<std::string> leaving = judge_leaving(work_->root(), fresh);
  narrow(new_.get(), work_->root(), leaving, of_others);  // what stays says nothing about what comes
  if (mkdirat(work_->fd(), Swap::old_name, 0700) != 0) fail("cannot create its work directory");
  if (fsync(new_.get()) != 0 || fsync(work_->fd()) != 0) fail("cannot flush");
  const Swap swap(work_->root(), work_->fd(), shown_);
  run(swap, swap.replace(leaving), [&] {
    const Descriptor old = open_directory(work_->fd(), Swap::old_name);
    if (old.get() < 0) fail("cannot open the old output");
    judge_tree(old.get(), list_directory(old.get(), printable(shown_)), fresh);
  });
}

}  // namespace nibble
