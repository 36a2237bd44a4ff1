// Calls of the system are taken over by functions of the same names, which a program's own objects may define. Outside
// of run_and_crash() they hand everything on.

#include "tests/support/crash.hpp"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "nibble/error.hpp"

namespace nibble::test {
namespace {

namespace fs = std::filesystem;

constexpr int exit_failed = 10, exit_no_more = 11, exit_ended = 12;

template <class F> F* original(const char* name) { return reinterpret_cast<F*>(dlsym(RTLD_NEXT, name)); }

// A name in a directory that is kept open: wherever that moves, the name goes with it.
struct Entry {
  int directory;
  ino_t inode;  // of the directory
  std::string name;
  bool operator<(const Entry& other) const { return std::tie(inode, name) < std::tie(other.inode, other.name); }
};

// Every change is a rename: what is created comes from the directory of lost things, and what is removed goes there. So
// each can be taken back, and an inode keeps its number.
struct Change {
  Entry from, to;
  bool is_exchange = false;
  ino_t removed = 0;  // the directory that was removed
};

// In the process that shall die.
struct Disk {
  Crash crash;
  int lost;  // the directory
  std::size_t calls = 0, names = 0;
  bool has_ended = false;
  std::vector<Change> unflushed{};
  std::map<ino_t, int> unflushed_files{};  // a descriptor of each
  pid_t thread = gettid();                 // others write data alone

  static ino_t inode_of(int fd) {
    struct stat status {};
    return fstat(fd, &status) == 0 ? status.st_ino : 0;
  }
  static Entry entry_of(int directory, const char* name) {
    return {fcntl(directory, F_DUPFD_CLOEXEC, 0), inode_of(directory), name};
  }
  Entry lost_entry() { return entry_of(lost, std::to_string(++names).c_str()); }
  static std::string path_of(int directory, const char* name) {
    const fs::path path = fs::read_symlink(fmt::format("/proc/self/fd/{}", directory));
    return *name == '\0' ? path : path / name;
  }
  // False if what it is about is not there.
  static bool carry_out(const Change& change, bool back = false) {
    const Entry& from = back ? change.to : change.from;
    const Entry& to = back ? change.from : change.to;
    const unsigned flags = change.is_exchange ? RENAME_EXCHANGE : RENAME_NOREPLACE;
    return original<decltype(::renameat2)>("renameat2")(from.directory, from.name.c_str(), to.directory,
                                                        to.name.c_str(), flags) == 0;
  }

  [[noreturn]] void die() {
    const std::size_t count = unflushed.size();
    if (crash.loss > 1 + 2 * count || (crash.loss > 0 && count == 0 && unflushed_files.empty())) _exit(exit_no_more);
    if (crash.loss > 0) {
      for (const auto& [inode, file] : unflushed_files)
        if (ftruncate(file, 0) != 0) _exit(1);
      for (std::size_t i = count; i-- > 0;)
        if (!carry_out(unflushed[i], true)) _exit(2);
    }
    const std::size_t which = crash.loss - 2;
    for (std::size_t i = 0; i < count && crash.loss > 1; ++i)
      if (which < count ? i == which : i != which - count) (void)carry_out(unflushed[i]);
    if (has_ended) _exit(exit_ended);
    ::kill(getpid(), SIGKILL);
    _exit(3);
  }

  // Whether a call on this path is meant by a text such as "rename new/config.json".
  static bool is_meant(const std::string& text, std::string_view call, const std::string& path) {
    const std::size_t space = text.find(' ');
    return space != std::string::npos && text.substr(0, space) == call && path.ends_with('/' + text.substr(space + 1));
  }

  // Every call begins here. False if it is to fail.
  bool begin(std::string_view call, const std::string& path) {
    if (++calls == crash.call || is_meant(crash.before, call, path)) die();
    const auto found = std::find_if(crash.failing.begin(), crash.failing.end(),
                                    [&](const std::string& text) { return is_meant(text, call, path); });
    if (found == crash.failing.end()) return true;
    crash.failing.erase(found);
    errno = EIO;
    return false;
  }

  void flush(int fd) {
    const ino_t inode = inode_of(fd);
    if (const auto found = unflushed_files.find(inode); found != unflushed_files.end()) {
      ::close(found->second);
      unflushed_files.erase(found);
    }
    // With a change goes what came before it under the same names, and with a directory what was removed from it.
    std::set<Entry> flushed;
    std::set<ino_t> removed;
    std::vector<Change> left;
    for (std::size_t i = unflushed.size(); i-- > 0;) {
      const Change& change = unflushed[i];
      if (change.from.inode == inode || change.to.inode == inode || removed.contains(change.from.inode) ||
          flushed.contains(change.from) || flushed.contains(change.to)) {
        flushed.insert({change.from, change.to});
        removed.insert(change.removed);
      } else {
        left.insert(left.begin(), change);
      }
    }
    unflushed = std::move(left);
  }
};

std::atomic<Disk*> disk{nullptr};
std::atomic<bool> flushes{true};

Disk* this_disk() {
  Disk* const found = disk.load(std::memory_order_relaxed);
  return found != nullptr && found->thread == gettid() ? found : nullptr;
}

bool is_empty(int at, const char* name) {
  const int fd = original<int(int, const char*, int, ...)>("openat")(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const directory = fd < 0 ? nullptr : fdopendir(fd);
  if (directory == nullptr) return false;
  std::size_t entries = 0;
  while (readdir(directory) != nullptr) ++entries;
  closedir(directory);
  return entries <= 2;
}

int rename_as(const char* call, int from, const char* old_name, int to, const char* new_name, unsigned flags) {
  Disk* const here = this_disk();
  if (here == nullptr) return original<decltype(::renameat2)>("renameat2")(from, old_name, to, new_name, flags);
  const bool is_exchange = flags == RENAME_EXCHANGE;
  if (is_exchange && !here->crash.can_exchange) {
    errno = EINVAL;
    return -1;
  }
  if (!here->begin(call, Disk::path_of(from, old_name))) return -1;
  const int result = original<decltype(::renameat2)>("renameat2")(from, old_name, to, new_name, flags);
  if (result == 0)
    here->unflushed.push_back({Disk::entry_of(from, old_name), Disk::entry_of(to, new_name), is_exchange});
  return result;
}

template <class Flush> int flush_as(int fd, Flush flush) {
  Disk* const here = this_disk();
  if (here == nullptr) return flushes ? flush(fd) : 0;
  if (!here->begin("flush", Disk::path_of(fd, ""))) return -1;
  here->flush(fd);
  return 0;
}

template <class Open> int open_as(Open open, int at, const char* name, int flags, mode_t mode) {
  Disk* const here = this_disk();
  if (here == nullptr || (flags & O_CREAT) == 0 || (flags & O_TMPFILE) == O_TMPFILE) return open(at, name, flags, mode);
  if (!here->begin("create", Disk::path_of(at, name))) return -1;
  struct stat status {};
  const bool is_new = fstatat(at, name, &status, AT_SYMLINK_NOFOLLOW) != 0;
  const int fd = open(at, name, flags, mode);
  if (fd < 0 || !is_new) return fd;
  here->unflushed.push_back({here->lost_entry(), Disk::entry_of(at, name)});
  here->unflushed_files[Disk::inode_of(fd)] = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  return fd;
}

}  // namespace

Fate run_and_crash(const Crash& crash, const fs::path& lost, const std::function<void()>& work) {
  const pid_t child = fork();
  if (child == 0) {
    Disk here{.crash = crash, .lost = open(lost.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
    disk = &here;
    try {
      work();
      here.has_ended = true;
      (void)here.begin("end", "");
    } catch (const Error&) {
      _exit(exit_failed);
    } catch (...) {
      _exit(4);
    }
    _exit(0);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) throw Error(Errc::io, "cannot run a process");
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) return Fate::crashed;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return Fate::finished;
  if (WIFEXITED(status) && WEXITSTATUS(status) == exit_failed) return Fate::failed;
  if (WIFEXITED(status) && WEXITSTATUS(status) == exit_ended) return Fate::ended;
  if (WIFEXITED(status) && WEXITSTATUS(status) == exit_no_more) return Fate::no_more;
  throw Error(Errc::io,
              fmt::format("call {}, loss {}: the process ends with status {}", crash.call, crash.loss, status));
}

std::size_t try_crashes(const Crash& kind, const std::function<void()>& prepare, const std::function<void()>& work,
                        const std::function<void(const std::string&, bool)>& check, const fs::path& lost) {
  std::size_t crashes = 0;
  struct NoFlush {
    NoFlush() { flushes = false; }
    ~NoFlush() { flushes = true; }
    NoFlush(const NoFlush&) = delete;
    NoFlush& operator=(const NoFlush&) = delete;
  } const no_flush;
  Crash crash = kind;
  for (crash.call = 1;; ++crash.call)
    for (crash.loss = 0;; ++crash.loss) {
      fs::remove_all(lost);
      fs::create_directory(lost);
      prepare();
      const Fate fate = run_and_crash(crash, lost, work);
      if (fate == Fate::finished || fate == Fate::failed) return crashes;
      if (fate == Fate::no_more) break;
      ++crashes;
      check(fmt::format("call {}, loss {}", crash.call, crash.loss), fate == Fate::ended);
      if (testing::Test::HasFailure()) return crashes;  // one is enough to look at
    }
}

// --- the calls that are taken over

extern "C" {

int fsync(int fd) { return flush_as(fd, original<decltype(fsync)>("fsync")); }
int fdatasync(int fd) { return flush_as(fd, original<decltype(fdatasync)>("fdatasync")); }

int renameat(int from, const char* old_name, int to, const char* new_name) noexcept {
  return rename_as("rename", from, old_name, to, new_name, 0);
}
int renameat2(int from, const char* old_name, int to, const char* new_name, unsigned flags) noexcept {
  return rename_as(flags == RENAME_EXCHANGE ? "exchange" : "rename", from, old_name, to, new_name, flags);
}

int mkdirat(int at, const char* name, mode_t mode) noexcept {
  Disk* const here = this_disk();
  if (here != nullptr && !here->begin("mkdir", Disk::path_of(at, name))) return -1;
  const int result = original<int(int, const char*, mode_t) noexcept>("mkdirat")(at, name, mode);
  if (here != nullptr && result == 0) here->unflushed.push_back({here->lost_entry(), Disk::entry_of(at, name)});
  return result;
}

int unlinkat(int at, const char* name, int flags) noexcept {
  Disk* const here = this_disk();
  if (here == nullptr) return original<int(int, const char*, int) noexcept>("unlinkat")(at, name, flags);
  struct stat status {};
  if (fstatat(at, name, &status, AT_SYMLINK_NOFOLLOW) != 0) return -1;
  const bool is_directory = S_ISDIR(status.st_mode);
  if (is_directory != (flags == AT_REMOVEDIR) || (is_directory && !is_empty(at, name))) {
    errno = is_directory ? (flags == AT_REMOVEDIR ? ENOTEMPTY : EISDIR) : ENOTDIR;
    return -1;
  }
  if (!here->begin("remove", Disk::path_of(at, name))) return -1;
  Change change{Disk::entry_of(at, name), here->lost_entry(), false, is_directory ? status.st_ino : 0};
  if (!Disk::carry_out(change)) return -1;
  here->unflushed.push_back(std::move(change));
  return 0;
}

int openat(int at, const char* name, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  return open_as(original<int(int, const char*, int, ...)>("openat"), at, name, flags, mode);
}

}  // extern "C"

}  // namespace nibble::test
