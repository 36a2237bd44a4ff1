// Preloaded into nibble by tests/faults/run.py: lets one call of the system fail, or kills the process at it.
//
//   NIBBLE_FAULT="CALL K ERRNO"  the K-th call of CALL, from 1 on, fails with that error
//   NIBBLE_FAULT="CALL K kill"   SIGKILL right before it
//   NIBBLE_FAULT="CALL 0 0"      none fails
//   NIBBLE_FAULT="CALL -1 ERRNO" all of them do
//   NIBBLE_FAULT="CALL -1 short" pread or pwrite moves half of the bytes that it was asked to, at least one
//   NIBBLE_FAULT_COUNT=FILE      how many there were is written to FILE at the end
//
// Calls count from the first setrlimit() on, with which main() begins: what loads the program is not the program's.

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

char call_name[32];
long fails_at = 0;
int fault = 0;  // an errno, or what follows
constexpr int kill = -1, is_short = -2;
std::atomic<bool> counts{false};
std::atomic<long> calls{0};

void begin() {
  const char* const text = std::getenv("NIBBLE_FAULT");
  char what[16] = "";
  if (text == nullptr || std::sscanf(text, "%31s %ld %15s", call_name, &fails_at, what) != 3) return;
  fault = std::strcmp(what, "kill") == 0 ? kill : std::strcmp(what, "short") == 0 ? is_short : std::atoi(what);
  counts = true;
}

// Whether this call is the one.
bool fails(const char* name) {
  if (!counts.load(std::memory_order_relaxed) || std::strcmp(name, call_name) != 0) return false;
  if ((++calls != fails_at && fails_at != -1) || fault == is_short) return false;
  if (fault == kill) ::kill(getpid(), SIGKILL);
  errno = fault;
  return true;
}

// What a call moves of so many bytes.
std::size_t moved(const char* name, std::size_t bytes) {
  const bool halves = counts.load(std::memory_order_relaxed) && fault == is_short && std::strcmp(name, call_name) == 0;
  return halves ? (bytes + 1) / 2 : bytes;
}

template <class F> F* original(const char* name) { return reinterpret_cast<F*>(dlsym(RTLD_NEXT, name)); }

struct AtEnd {
  ~AtEnd() {
    counts = false;
    const char* const path = std::getenv("NIBBLE_FAULT_COUNT");
    if (path == nullptr) return;
    if (std::FILE* const file = std::fopen(path, "w")) {
      std::fprintf(file, "%ld\n", calls.load());
      std::fclose(file);
    }
  }
} at_end;

}  // namespace

extern "C" {

void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);

int setrlimit(__rlimit_resource_t resource, const rlimit* limit) {
  const int result = original<decltype(setrlimit)>("setrlimit")(resource, limit);
  begin();
  return result;
}

// What is asked for by C++ and by libraries. `new` and `malloc` are the same here.
void* malloc(std::size_t bytes) { return fails("malloc") ? nullptr : __libc_malloc(bytes); }
void* calloc(std::size_t count, std::size_t bytes) { return fails("malloc") ? nullptr : __libc_calloc(count, bytes); }
void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
  return fails("malloc") ? nullptr : __libc_memalign(alignment, bytes);
}
int posix_memalign(void** result, std::size_t alignment, std::size_t bytes) {
  if (fails("malloc")) return ENOMEM;
  *result = __libc_memalign(alignment, bytes);
  return *result == nullptr ? ENOMEM : 0;
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*), void* argument) {
  if (fails("pthread_create")) return EAGAIN;
  static const auto call = original<decltype(pthread_create)>("pthread_create");
  return call(thread, attributes, run, argument);
}

#define NIBBLE_OPEN(NAME)                                                                  \
  int NAME(int directory, const char* path, int flags, ...) {                              \
    mode_t mode = 0;                                                                       \
    if ((flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE) {                      \
      va_list arguments;                                                                   \
      va_start(arguments, flags);                                                          \
      mode = va_arg(arguments, mode_t);                                                    \
      va_end(arguments);                                                                   \
    }                                                                                      \
    if (fails("openat")) return -1;                                                        \
    return original<int(int, const char*, int, ...)>(#NAME)(directory, path, flags, mode); \
  }
NIBBLE_OPEN(openat)
NIBBLE_OPEN(openat64)

// NAME(PARAMETERS) forwards ARGUMENTS; RESULT is what it returns when it fails.
#define NIBBLE_CALL(NAME, SHOWN, TYPE, RESULT, PARAMETERS, ARGUMENTS) \
  TYPE NAME PARAMETERS {                                              \
    if (fails(SHOWN)) return RESULT;                                  \
    return original<TYPE PARAMETERS>(#NAME) ARGUMENTS;                \
  }
NIBBLE_CALL(readdir, "readdir", dirent*, nullptr, (DIR * stream), (stream))
NIBBLE_CALL(readdir64, "readdir", dirent64*, nullptr, (DIR * stream), (stream))
NIBBLE_CALL(getdents64, "getdents64", ssize_t, -1, (int fd, void* to, std::size_t bytes), (fd, to, bytes))
NIBBLE_CALL(fdopendir, "fdopendir", DIR*, nullptr, (int fd), (fd))
NIBBLE_CALL(fstat, "stat", int, -1, (int fd, struct stat* to) noexcept, (fd, to))
NIBBLE_CALL(fstat64, "stat", int, -1, (int fd, struct stat64* to) noexcept, (fd, to))
NIBBLE_CALL(fstatat, "stat", int, -1, (int at, const char* path, struct stat* to, int flags) noexcept,
            (at, path, to, flags))
NIBBLE_CALL(fstatat64, "stat", int, -1, (int at, const char* path, struct stat64* to, int flags) noexcept,
            (at, path, to, flags))
NIBBLE_CALL(pread, "pread", ssize_t, -1, (int fd, void* to, std::size_t bytes, off_t at),
            (fd, to, moved("pread", bytes), at))
NIBBLE_CALL(pread64, "pread", ssize_t, -1, (int fd, void* to, std::size_t bytes, off64_t at),
            (fd, to, moved("pread", bytes), at))
NIBBLE_CALL(pwrite, "pwrite", ssize_t, -1, (int fd, const void* from, std::size_t bytes, off_t at),
            (fd, from, moved("pwrite", bytes), at))
NIBBLE_CALL(pwrite64, "pwrite", ssize_t, -1, (int fd, const void* from, std::size_t bytes, off64_t at),
            (fd, from, moved("pwrite", bytes), at))
NIBBLE_CALL(fsync, "fsync", int, -1, (int fd), (fd))
NIBBLE_CALL(fdatasync, "fsync", int, -1, (int fd), (fd))
NIBBLE_CALL(ftruncate, "ftruncate", int, -1, (int fd, off_t bytes) noexcept, (fd, bytes))
NIBBLE_CALL(ftruncate64, "ftruncate", int, -1, (int fd, off64_t bytes) noexcept, (fd, bytes))
NIBBLE_CALL(fallocate, "fallocate", int, -1, (int fd, int mode, off_t at, off_t bytes), (fd, mode, at, bytes))
NIBBLE_CALL(fallocate64, "fallocate", int, -1, (int fd, int mode, off64_t at, off64_t bytes), (fd, mode, at, bytes))
NIBBLE_CALL(renameat, "rename", int, -1, (int from, const char* old_name, int to, const char* new_name) noexcept,
            (from, old_name, to, new_name))
// As a file system that knows no flags refuses it, and as any rename.
int renameat2(int from, const char* old_name, int to, const char* new_name, unsigned flags) noexcept {
  if (fails("renameat2") || fails("rename")) return -1;
  return original<decltype(renameat2)>("renameat2")(from, old_name, to, new_name, flags);
}
NIBBLE_CALL(mkdirat, "mkdir", int, -1, (int at, const char* path, mode_t mode) noexcept, (at, path, mode))
NIBBLE_CALL(unlinkat, "unlink", int, -1, (int at, const char* path, int flags) noexcept, (at, path, flags))
NIBBLE_CALL(fchmod, "chmod", int, -1, (int fd, mode_t mode) noexcept, (fd, mode))
NIBBLE_CALL(fchmodat, "chmod", int, -1, (int at, const char* path, mode_t mode, int flags) noexcept,
            (at, path, mode, flags))
NIBBLE_CALL(flock, "flock", int, -1, (int fd, int operation) noexcept, (fd, operation))

// The descriptor is gone all the same.
int close(int fd) {
  const int result = original<decltype(close)>("close")(fd);
  return fails("close") ? -1 : result;
}
}
