#include "formats/commit/transaction.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "core/files/directory.hpp"
#include "formats/commit/modes.hpp"
#include "formats/commit/recovery.hpp"
#include "nibble/error.hpp"

namespace nibble {
namespace {

// The errors of a file system that does not support the flag, or not for these two: mounts, overlays, sticky folders.
bool is_unsupported(int error) {
  return error == EINVAL || error == ENOSYS || error == EOPNOTSUPP || error == EBUSY || error == EXDEV ||
         error == EPERM;
}

// What the files take that an interrupted run has built.
std::uint64_t built_bytes(int work) {
  constexpr std::uint64_t block = 512;  // of st_blocks, whatever the file system
  const Descriptor built = open_directory(work, Swap::new_name);
  if (built.get() < 0) return 0;
  std::uint64_t bytes = 0;
  for (const std::string& name : list_directory(built.get(), Swap::new_name))
    if (const auto status = status_of(built.get(), name, Swap::new_name))
      bytes += static_cast<std::uint64_t>(status->st_blocks) * block;
  return bytes;
}

bool same_entry(const struct stat& a, const struct stat& b) { return a.st_dev == b.st_dev && a.st_ino == b.st_ino; }

}  // namespace

void Transaction::fail(std::string_view action) const { target_.fail(action); }

void Transaction::refuse(std::string_view fact) const { target_.refuse_existing(target_.shown(), fact); }

Transaction::Transaction(const std::filesystem::path& path, Kind kind, const Options& options)
    : target_(path, kind, options) {
  if (target_.keeps() && target_.has_entry(target_.parent(), target_.beside_name())) {
    // An earlier run found nothing that stays.
    target_.set_inside(false);
    enter();
    if (!found_) {
      work_.reset();
      target_.set_inside(true);
    }
  }
  if (!work_) enter();
  if (!found_ && mkdirat(work_->fd(), Swap::new_name, 0777) != 0) fail("cannot create its work directory");
  new_ = open_directory(work_->fd(), Swap::new_name);
  if (new_.get() < 0) fail("cannot open its work directory");
  target_.forget_paths();
}

// Takes the work directory, and finishes or clears what an earlier run left in it. Afterwards it is known what will be
// replaced.
void Transaction::enter() {
  Target::WorkLocation location = target_.work_location();
  work_.emplace(std::move(location.root), location.name, target_.shown(), location.path);
  judge_remains(target_, work_->fd(), work_->shown());
  if (std::string warning = recover(target_, *work_); !warning.empty()) warnings_.push_back(std::move(warning));
  old_ = target_.old();
  if (!remove_old())
    throw Error(Errc::io, printable(target_.shown()),
                fmt::format("'{}/{}' cannot be removed", printable(work_->shown()), Swap::old_name));
  if (may_resume(*work_)) find_log();
  if (!found_) work_->clear();
}

void Transaction::find_log() {
  if (target_.options().resume && !work_->is_private())
    throw Error(Errc::output_exists, printable(work_->shown()), "cannot be resumed: others can enter it",
                Remedy::Kind::begin_again);
  try {
    found_ = WorkLog::find(work_->fd(), work_->shown());
  } catch (const Error&) {
    if (target_.options().resume) throw;
  }
  if (found_ && !found_->has_records()) found_.reset();  // nothing was finished
  if (target_.options().resume) return;
  if (found_)
    warnings_.push_back(
        fmt::format("{}: what an interrupted run had finished was removed, because this run does not "
                    "resume it",
                    printable(target_.shown())));
  found_.reset();
}

WorkLog Transaction::take_over(const std::function<bool(const std::string&)>& stays) {
  for (const std::string& entry : list_directory(new_.get(), printable(target_.shown()))) {
    if (stays(entry)) continue;
    remove_tree(new_.get(), entry.c_str());
    if (may_exist(new_.get(), entry.c_str()))
      throw Error(Errc::io, printable(work_->shown()), fmt::format("cannot remove '{}' in it", printable(entry)));
  }
  // It gets the mode of a new one: the umask may be another than that of the interrupted run.
  constexpr const char* sample = "sample";
  if (mkdirat(new_.get(), sample, 0777) != 0) fail("cannot create in its work directory");
  const auto status = status_of(new_.get(), sample, printable(work_->shown()));
  if (unlinkat(new_.get(), sample, AT_REMOVEDIR) != 0 || !status || fchmod(new_.get(), status->st_mode & 07777) != 0)
    fail("cannot set the mode of its work directory");
  work_->take_over();
  WorkLog log = std::move(*found_);
  found_.reset();
  return log;
}

WorkLog Transaction::begin_log(std::string_view head) const { return {work_->fd(), work_->shown(), head}; }

void Transaction::flush_names() const {
  for (const int directory : {new_.get(), work_->fd(), work_->root()})
    if (fsync(directory) != 0) fail("cannot flush");
}

std::string Transaction::keep() {
  if (!work_->is_private()) return {};
  work_->keep();
  return work_->shown();
}

std::uint64_t Transaction::free_bytes() const { return target_.free_bytes() + (found_ ? built_bytes(work_->fd()) : 0); }

// Where an earlier run left something to finish, only the run itself can tell the rest.
std::uint64_t Transaction::check(const std::filesystem::path& path, Kind kind, const Options& options) {
  const Target target(path, kind, options);
  const Target::WorkLocation location = target.work_location();
  const Descriptor work = WorkDirectory::check(location.root.get(), location.name, target.shown(), location.path);
  if (work.get() >= 0) judge_remains(target, work.get(), WorkDirectory::path_of(location.path, location.name));
  target.judge_as_it_is();
  const bool resumes = options.resume && work.get() >= 0 && may_exist(work.get(), WorkLog::name);
  return target.free_bytes() + (resumes ? built_bytes(work.get()) : 0);
}

void Transaction::commit() {
  if (target_.kind() == Kind::file) {
    commit_file();
  } else if (target_.is_inside()) {
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
  (void)unlinkat(work_->fd(), WorkLog::name, 0);  // first, since the files that it lists are no longer in `new`
  if (remove_old() && work_->remove()) return;
  work_->keep();
  try {
    remains_ = fmt::format("{}: the old output could not be removed completely: the rest is in {}",
                           printable(target_.shown()), printable(work_->shown()));
  } catch (...) {  // no memory for a warning
  }
}

void Transaction::commit_file() {
  std::vector<std::string> names{target_.name()};
  if (target_.options().with_manifest) names.push_back(target_.manifest_name());
  narrow_modes(new_.get(), target_.parent(), names, target_.shown());
  if (mkdirat(work_->fd(), Swap::old_name, 0700) != 0) fail("cannot create its work directory");
  if (fsync(new_.get()) != 0 || fsync(work_->fd()) != 0) fail("cannot flush");

  // Two names cannot change in one step. So the old manifest goes first and the new one comes last, with a barrier on
  // either side of the file: what is seen between is a file without a manifest, which claims nothing. The journal
  // makes the three steps one: they are all undone if one fails, and finished by the next run after a crash.
  const Target::Judged judged = target_.judge_files();  // again: the run took a while
  const Swap swap(target_.parent(), work_->fd(), target_.shown());
  Swap::Steps steps;
  if (judged.manifest != 0) steps.push_back({Swap::Action::take_out, target_.manifest_name(), judged.manifest, 0});
  steps.push_back({});
  steps.push_back(swap.step(Swap::Action::put_in, target_.name()));
  if (judged.file != 0) steps.back().action = Swap::Action::exchange;
  steps.back().old_inode = judged.file;
  steps.push_back({});
  if (target_.has_entry(new_.get(), target_.manifest_name()))
    steps.push_back(swap.step(Swap::Action::put_in, target_.manifest_name()));
  steps.push_back({});
  run(swap, steps, [&] { target_.judge_replaced(work_->fd()); });
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
  const Descriptor old = open_directory(target_.parent(), target_.name());
  struct stat status {};
  if (old.get() < 0 || fstat(old.get(), &status) != 0) fail("cannot open");
  narrow_modes(new_.get(), old.get(), list_directory(old.get(), printable(target_.shown())), target_.shown());
  struct stat mine {};
  if (fstat(new_.get(), &mine) != 0) fail("cannot read the status of its work directory");
  mine.st_mode = status.st_mode & 07777;
  const mode_t mode = (status.st_mode & 07000) | narrowed_mode(work_->fd(), Swap::new_name, mine, status);
  if (fchmod(new_.get(), mode | S_IRWXU) != 0) fail("cannot set its mode");
  const std::vector<std::string> fresh = list_tree(new_.get(), printable(target_.shown()));
  target_.judge_tree(*old_, old.get(), target_.entries_of(old.get()), fresh);
  const auto all_leave = [&](int directory) {
    return target_.judge_leaving(directory, fresh).size() ==
           list_directory(directory, printable(target_.shown())).size();
  };
  if (all_leave(old.get()) && exchange(mode, fresh, all_leave)) return;

  // The file system cannot do that, or something came that stays: the work directory moves into the old one, and the
  // entries are exchanged.
  if (status.st_uid != geteuid())
    throw Error(Errc::io, printable(target_.shown()), "cannot replace what belongs to another user");
  if (!work_->move(Descriptor(dup(old.get())), Target::inside_name, target_.shown())) fail("cannot replace");
  target_.set_inside(true);
  commit_inside();
}

// For a target that did not exist: it must not exist now either.
void Transaction::publish() {
  if (fsync(new_.get()) != 0 || fsync(work_->fd()) != 0) fail("cannot flush");
  if (renameat2(work_->fd(), Swap::new_name, target_.parent(), target_.name().c_str(), RENAME_NOREPLACE) != 0) {
    if (errno == EEXIST) refuse("appeared meanwhile");
    if (!is_unsupported(errno)) fail("cannot create");
    if (may_exist(target_.parent(), target_.name().c_str())) refuse("appeared meanwhile");
    // Without that flag: renaming a directory fails where the name is taken by anything but an empty one.
    if (renameat(work_->fd(), Swap::new_name, target_.parent(), target_.name().c_str()) != 0) fail("cannot create");
  }
  if (fsync(target_.parent()) == 0) return;
  const int error = errno;
  (void)renameat(target_.parent(), target_.name().c_str(), work_->fd(), Swap::new_name);
  errno = error;
  fail("cannot flush");
}

// False if the file system has no such call for these two.
bool Transaction::exchange(mode_t mode, std::span<const std::string> fresh, const std::function<bool(int)>& all_leave) {
  if (fsync(new_.get()) != 0 || fsync(work_->fd()) != 0) fail("cannot flush");
  if (renameat(work_->fd(), Swap::new_name, work_->fd(), WorkDirectory::exchanged_name) != 0) fail("cannot replace");
  const auto swap_entries = [&] {
    return renameat2(work_->fd(), WorkDirectory::exchanged_name, target_.parent(), target_.name().c_str(),
                     RENAME_EXCHANGE) == 0;
  };
  const auto set_name = [&](const char* name) {
    return renameat(work_->fd(), WorkDirectory::exchanged_name, work_->fd(), name) == 0;
  };
  if (!swap_entries()) {
    const int error = errno;
    (void)set_name(Swap::new_name);
    errno = error;
    if (!is_unsupported(error)) fail("cannot replace");
    return false;
  }
  try {
    // What came back is what counts, not what was there before.
    const Descriptor back = open_directory(work_->fd(), WorkDirectory::exchanged_name);
    struct stat status {};
    if (back.get() < 0 || fstat(back.get(), &status) != 0) fail("cannot open the old output");
    if (!same_entry(status, old_->status)) refuse("was changed meanwhile; nothing is replaced");
    target_.judge_tree(*old_, back.get(), target_.entries_of(back.get()), fresh);
    if (!all_leave(back.get())) refuse("was changed meanwhile; nothing is replaced");
    if (fchmod(new_.get(), mode) != 0) fail("cannot set its mode");
    if (fsync(target_.parent()) != 0) fail("cannot flush");
    if (!set_name(WorkDirectory::trash_name)) fail("cannot replace");
  } catch (...) {
    // The new entries are removed only when they are no longer needed.
    const bool is_back = swap_entries() && set_name(Swap::new_name);
    if (!is_back || fsync(target_.parent()) != 0 || fsync(work_->fd()) != 0) work_->keep();
    throw;
  }
  (void)fsync(work_->fd());  // nothing in it is removed before its name says that it may be
  return true;
}

void Transaction::commit_inside() {
  const std::vector<std::string> entries = target_.entries_of(work_->root());
  const std::vector<std::string> fresh = list_tree(new_.get(), printable(target_.shown()));
  target_.judge_tree(*old_, work_->root(), entries, fresh);
  const std::vector<std::string> leaving = target_.judge_leaving(work_->root(), fresh);
  narrow_modes(new_.get(), work_->root(), leaving, target_.shown());  // what stays says nothing about what comes
  if (mkdirat(work_->fd(), Swap::old_name, 0700) != 0) fail("cannot create its work directory");
  if (fsync(new_.get()) != 0 || fsync(work_->fd()) != 0) fail("cannot flush");
  const Swap swap(work_->root(), work_->fd(), target_.shown());
  run(swap, swap.replace(leaving), [&] {
    const Descriptor old = open_directory(work_->fd(), Swap::old_name);
    if (old.get() < 0) fail("cannot open the old output");
    target_.judge_tree(*old_, old.get(), list_directory(old.get(), printable(target_.shown())), fresh);
  });
}

}  // namespace nibble
