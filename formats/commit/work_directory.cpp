#include "formats/commit/work_directory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>
#include <utility>

#include "core/files/directory.hpp"
#include "nibble/error.hpp"

namespace nibble {
namespace {

constexpr int lock_attempts = 100;

[[noreturn]] void fail_with(std::string_view shown, std::string_view action) {
  throw Error(Errc::io, printable(shown), fmt::format("{}: {}", action, std::strerror(errno)));
}

[[noreturn]] void refuse_with(std::string_view shown, std::string_view fact) {
  throw Error(Errc::output_exists, printable(shown), fact);
}

// Somebody else could put files into it that we would take for ours, or keep files that we put there.
void check_ours(int directory, std::string_view shown) {
  struct stat status {};
  if (fstat(directory, &status) != 0) fail_with(shown, "cannot look at it");
  if (status.st_uid != geteuid()) refuse_with(shown, "belongs to another user: remove it first");
  if ((status.st_mode & 022) != 0) refuse_with(shown, "others can write it: remove it first");
}

[[noreturn]] void fail_to_create(std::string_view output) { fail_with(output, "cannot create its work directory"); }

[[noreturn]] void refuse_locked(std::string_view output) { refuse_with(output, "another nibble is writing it"); }

// None if there is nothing of that name.
Descriptor open_work(int root, const std::string& name, std::string_view shown) {
  Descriptor directory = open_directory(root, name);
  if (directory.get() >= 0 || errno == ENOENT) return directory;
  if (errno == ENOTDIR || errno == ELOOP) refuse_with(shown, "is in the way: remove it first");
  fail_with(shown, "cannot open");
}

// False if another process holds a lock that excludes this one.
bool try_lock(int directory, int operation, std::string_view shown) {
  if (flock(directory, operation | LOCK_NB) == 0) return true;
  if (errno != EWOULDBLOCK) fail_with(shown, "cannot lock");
  return false;
}

}  // namespace

std::string WorkDirectory::path_of(std::string_view folder, std::string_view name) {
  return folder.empty() ? std::string(name) : fmt::format("{}/{}", folder, name);
}

// None if its owner has just removed it.
Descriptor WorkDirectory::make(std::string_view output) {
  const bool is_new = mkdirat(root_.get(), name_.c_str(), 0700) == 0;
  removes_ = is_new;
  if (!is_new && errno != EEXIST) fail_to_create(output);
  Descriptor directory = open_work(root_.get(), name_, shown_);
  // Some file systems report one owner and one mode for everything; a new directory is ours whatever they report.
  if (directory.get() >= 0 && !is_new) check_ours(directory.get(), shown_);
  return directory;
}

WorkDirectory::WorkDirectory(Descriptor root, std::string name, std::string_view shown, std::string_view folder)
    : root_(std::move(root)), name_(std::move(name)), shown_(path_of(folder, name_)) {
  try {
    lock(shown);
  } catch (...) {
    if (removes_) (void)unlinkat(root_.get(), name_.c_str(), AT_REMOVEDIR);  // what was made here and is empty
    throw;
  }
}

void WorkDirectory::lock(std::string_view output) {
  for (int attempt = 0; attempt < lock_attempts; ++attempt) {
    Descriptor directory = make(output);
    if (directory.get() < 0) continue;
    if (!try_lock(directory.get(), LOCK_EX, shown_)) {
      // Another process holds it, perhaps only for a moment: check() does.
      removes_ = false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      continue;
    }
    // Its owner may have removed it between our opening and locking it: what we locked must still have the name.
    struct stat locked {};
    const auto named = status_of(root_.get(), name_, printable(shown_));
    if (fstat(directory.get(), &locked) == 0 && named && locked.st_ino == named->st_ino &&
        locked.st_dev == named->st_dev) {
      fd_ = std::move(directory);
      return;
    }
  }
  refuse_locked(output);
}

Descriptor WorkDirectory::check(int root, const std::string& name, std::string_view output, std::string_view folder) {
  const std::string shown = path_of(folder, name);
  Descriptor directory = open_work(root, name, shown);
  if (directory.get() < 0) {
    if (faccessat(root, ".", W_OK, AT_EACCESS) != 0) fail_to_create(output);
    return directory;
  }
  check_ours(directory.get(), shown);
  // A shared lock, and for this moment only: several checks do not exclude each other, and lock() tries again.
  if (!try_lock(directory.get(), LOCK_SH, shown)) refuse_locked(output);
  (void)flock(directory.get(), LOCK_UN);
  return directory;
}

WorkDirectory::~WorkDirectory() {
  if (removes_) remove();
}

void WorkDirectory::clear() {
  removes_ = true;
  remove_entries(fd());
  if (const auto left = list_directory(fd(), printable(shown_)); !left.empty())
    throw Error(Errc::io, printable(shown_), fmt::format("cannot remove '{}' in it", printable(left.front())));
}

bool WorkDirectory::is_private() const {
  struct stat status {};
  if (fstat(fd(), &status) != 0) fail_with(shown_, "cannot look at it");
  return status.st_uid == geteuid() && (status.st_mode & 077) == 0;
}

bool WorkDirectory::move(Descriptor root, const char* name, std::string_view folder) {
  std::string shown = path_of(folder, name);
  std::string new_name = name;
  if (renameat(root_.get(), name_.c_str(), root.get(), name) != 0) return false;
  root_ = std::move(root);
  name_ = std::move(new_name);
  shown_ = std::move(shown);
  return true;
}

bool WorkDirectory::remove() noexcept {
  if (fd_.get() < 0) return true;
  remove_entries(fd_.get());  // compare with what was locked: another directory may have the name by now
  (void)unlinkat(root_.get(), name_.c_str(), AT_REMOVEDIR);
  struct stat status {};
  return fstatat(root_.get(), name_.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0 && errno == ENOENT;
}

}  // namespace nibble
