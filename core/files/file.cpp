#include "core/files/file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <system_error>
#include <utility>

#include "core/checked.hpp"
#include "core/files/open_files.hpp"
#include "core/refuse.hpp"

namespace nibble {
namespace {

[[noreturn]] void fail(Errc code, std::string_view label, std::string_view what, int error) {
  throw Error(code, label, fmt::format("{}: {}", what, std::generic_category().message(error)));
}

// Repeats a system call that a signal interrupted. Signals reach programs that never asked for them (profilers,
// terminals that change their size).
template <class Call> auto retry(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

// One read or write moves 2^31 - 4096 bytes at most; a round number stays aligned.
constexpr std::size_t max_transfer = std::size_t{1} << 30;

// Shorter pieces would make the disk write many small ones.
constexpr off_t min_write_back = 64 << 10;

// Writes past the page cache are multiples of this.
constexpr long direct_unit = 4096;

bool is_full(int error) { return error == ENOSPC || error == EDQUOT; }

void check_regular(std::string_view label, mode_t mode) {
  if (S_ISREG(mode)) return;
  const std::string_view kind = S_ISDIR(mode)    ? "a directory"
                                : S_ISFIFO(mode) ? "a pipe"
                                : S_ISSOCK(mode) ? "a socket"
                                                 : "a device";
  refuse(label, "is {}, not a regular file", kind);
}

// An error about the path and not about the system: the input is wrong.
bool names_nothing(int error) {
  return error == ENOENT || error == ENOTDIR || error == ELOOP || error == ENAMETOOLONG || error == ENXIO ||
         error == ENODEV || error == EISDIR;
}

off_t to_off(std::string_view label, std::uint64_t offset) {
  if (offset > static_cast<std::uint64_t>(std::numeric_limits<off_t>::max()))
    throw Error(Errc::io, label, fmt::format("offset {} is beyond the largest that a file can have", offset));
  return static_cast<off_t>(offset);
}

}  // namespace

Descriptor::Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

Descriptor::~Descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

int Descriptor::release() noexcept { return std::exchange(fd_, -1); }

Transfer read_all(int fd, off_t offset, std::span<std::byte> out) {
  Transfer done;
  while (!out.empty()) {
    const ssize_t got = retry([&] { return ::pread(fd, out.data(), std::min(out.size(), max_transfer), offset); });
    if (got < 0) done.error = errno;
    if (got <= 0) break;
    done.bytes += static_cast<std::size_t>(got);
    out = out.subspan(static_cast<std::size_t>(got));
    offset += got;
  }
  return done;
}

Transfer write_all(int fd, off_t offset, std::span<const std::byte> bytes) {
  Transfer done;
  while (!bytes.empty()) {
    const ssize_t put = retry([&] { return ::pwrite(fd, bytes.data(), std::min(bytes.size(), max_transfer), offset); });
    if (put <= 0) {
      done.error = put < 0 ? errno : EIO;
      break;
    }
    done.bytes += static_cast<std::size_t>(put);
    bytes = bytes.subspan(static_cast<std::size_t>(put));
    offset += put;
  }
  return done;
}

Directory::Directory(const std::filesystem::path& path)
    // O_PATH needs no permission to list names, and the names of the files are known.
    : fd_(retry([&] { return ::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC); })) {
  if (fd_.get() >= 0) return;
  const int error = errno;
  fail(names_nothing(error) ? Errc::bad_input : Errc::io, escaped(path.native()), "cannot open directory", error);
}

bool Directory::has(const std::string& name) const {
  struct ::stat status {};
  return ::fstatat(fd(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 || errno != ENOENT;
}

InputFile::Identity InputFile::identity_of(const struct ::stat& status) {
  return {static_cast<std::uint64_t>(status.st_dev), static_cast<std::uint64_t>(status.st_ino),
          static_cast<std::uint64_t>(status.st_size), status.st_mtim.tv_sec, status.st_mtim.tv_nsec};
}

InputFile::InputFile(int directory, std::string name, std::string label, OpenFiles* files)
    : directory_(directory), name_(std::move(name)), label_(std::move(label)), files_(files) {
  // A C string ends at its first NUL, so a different file than the one that was checked would be opened.
  if (name_.find('\0') != std::string::npos) refuse(label_, "its name contains a NUL byte");
  fd_ = open();
  if (fd_.get() < 0) {
    const int error = errno;
    fail(names_nothing(error) ? Errc::bad_input : Errc::io, label_, "cannot open", error);
  }
  struct ::stat status {};
  if (::fstat(fd_.get(), &status) != 0) fail(Errc::io, label_, "cannot stat", errno);
  check_regular(label_, status.st_mode);
  identity_ = identity_of(status);
  if (files_ != nullptr) number_ = files_->add(std::move(fd_));
}

// O_NONBLOCK: without it, opening a pipe that nobody writes to never returns. Regular files ignore it.
Descriptor InputFile::open() const {
  return Descriptor(
      retry([&] { return ::openat(directory_, name_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); }));
}

Descriptor InputFile::open_again() const {
  Descriptor fd = open();
  if (fd.get() < 0) {
    const int error = errno;
    if (names_nothing(error)) fail(Errc::input_changed, label_, "no longer exists", error);
    fail(Errc::io, label_, "cannot open again", error);
  }
  struct ::stat status {};
  if (::fstat(fd.get(), &status) != 0) fail(Errc::io, label_, "cannot stat", errno);
  if (identity_of(status) != identity_) refuse_changed();
  return fd;
}

void InputFile::read(std::uint64_t offset, std::span<std::byte> out) const {
  if (files_ == nullptr) return read_from(fd_.get(), offset, out);
  const OpenFiles::Use use = files_->use(number_, [this] { return open_again(); });
  read_from(use.fd(), offset, out);
}

void InputFile::read_from(int fd, std::uint64_t offset, std::span<std::byte> out) const {
  const Transfer done = read_all(fd, to_off(label_, offset), out);
  if (done.error != 0) fail(Errc::io, label_, "cannot read", done.error);
  if (done.bytes < out.size())
    throw Error(Errc::input_changed, label_,
                fmt::format("now ends at byte {}, but had {} bytes when it was opened", offset + done.bytes, size()));
}

void InputFile::check_size(std::uint64_t limit) const {
  if (size() > limit) refuse(label_, "has {} bytes, more than the {} that such a file may have", size(), limit);
}

std::string InputFile::read_text(std::uint64_t limit) const {
  check_size(limit);
  std::string text(size(), '\0');
  read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

void InputFile::check_unchanged() const {
  struct ::stat named {};
  if (::fstatat(directory_, name_.c_str(), &named, 0) != 0) {
    if (errno == ENOENT) fail(Errc::input_changed, label_, "no longer exists", errno);
    fail(Errc::io, label_, "cannot stat", errno);
  }
  if (identity_of(named) != identity_) refuse_changed();
}

void InputFile::refuse_changed() const { throw Error(Errc::input_changed, label_, "changed while it was read"); }

std::string_view why_not_ours(const struct ::stat& file) {
  if (!S_ISREG(file.st_mode)) return "it is not a regular file";
  if (file.st_uid != ::geteuid()) return "it belongs to another user";
  if ((file.st_mode & 022) != 0) return "others can write it";
  if (file.st_nlink != 1) return "it has a second name";
  return {};
}

OutputFile::OutputFile(int directory, const std::string& name, std::string label, ::mode_t mode)
    : label_(std::move(label)) {
  constexpr int flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;
  fd_ = Descriptor(retry([&] { return ::openat(directory, name.c_str(), flags, mode); }));
  if (fd_.get() >= 0) return;
  const int error = errno;
  const Errc code = error == EEXIST ? Errc::output_exists : is_full(error) ? Errc::no_space : Errc::io;
  fail(code, label_, "cannot create", error);
}

std::optional<OutputFile> OutputFile::reopen(int directory, const std::string& name, std::string label,
                                             std::uint64_t bytes) {
  constexpr int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  Descriptor fd(retry([&] { return ::openat(directory, name.c_str(), flags); }));
  struct ::stat status {};
  if (fd.get() < 0 || ::fstat(fd.get(), &status) != 0 || std::cmp_not_equal(status.st_size, bytes)) return std::nullopt;
  status.st_mode &= ~::mode_t{S_IWGRP | S_IWOTH};  // the directory decides who can write it
  if (!why_not_ours(status).empty()) return std::nullopt;
  // The mode of a new file: the umask may be another than when it was made.
  struct ::stat folder {};
  if (::fstat(directory, &folder) != 0 || ::fchmod(fd.get(), folder.st_mode & 0666) != 0) return std::nullopt;
  OutputFile file(std::move(label), std::move(fd));
  // If the disk did not take a page, the page cache may still have it, and may no longer try to write it.
  file.flush();
  (void)::posix_fadvise(file.fd_.get(), 0, 0, POSIX_FADV_DONTNEED);
  return file;
}

bool OutputFile::read_at(std::uint64_t offset, std::span<std::byte> out) const {
  return read_all(fd_.get(), to_off(label_, offset), out).bytes == out.size();
}

void OutputFile::reserve(std::uint64_t bytes) {
  const off_t size = to_off(label_, bytes);
  // Check free space first: fallocate() fills the disk before it fails.
  struct ::statvfs disk {};
  if (::fstatvfs(fd_.get(), &disk) == 0) {
    const Checked available = Checked(disk.f_bavail) * disk.f_frsize;
    if (available.valid() && bytes > available.value())
      throw Error(Errc::no_space, label_,
                  fmt::format("{} bytes do not fit, the disk has {} free", bytes, available.value()));
  }
  // posix_fallocate() would write to every block where the file system cannot allocate: minutes for a large model.
  if (size > 0 && retry([&] { return ::fallocate(fd_.get(), 0, 0, size); }) != 0) {
    const int error = errno;
    if (is_full(error)) fail(Errc::no_space, label_, fmt::format("{} bytes do not fit", bytes), error);
    if (error != EOPNOTSUPP && error != ENOSYS) fail(Errc::io, label_, "cannot reserve space", error);
  }
  if (retry([&] { return ::ftruncate(fd_.get(), size); }) != 0) {
    const int error = errno;
    fail(is_full(error) ? Errc::no_space : Errc::io, label_, "cannot set the size", error);
  }
}

void OutputFile::truncate(std::uint64_t bytes) {
  const off_t size = to_off(label_, bytes);
  if (retry([&] { return ::ftruncate(fd_.get(), size); }) != 0) fail(Errc::io, label_, "cannot set the size", errno);
}

void OutputFile::write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
  const off_t begin = to_off(label_, offset);
  const auto size = static_cast<off_t>(bytes.size());
  if (const int error = write_all(fd_.get(), begin, bytes).error; error != 0)
    fail(Errc::io, label_, "cannot write", error);
  // The disk starts writing now, so flush() has little left to wait for: 540 MB in chunks of 256 KiB took 0.26 s with
  // it and 0.44 s without (docs/tried-and-lost.md). This is only a hint: flush() reports what fails here.
  if (size >= min_write_back) (void)::sync_file_range(fd_.get(), begin, size, SYNC_FILE_RANGE_WRITE);
}

Descriptor OutputFile::open_direct(int directory, const std::string& name) const {
  Descriptor direct(
      retry([&] { return ::openat(directory, name.c_str(), O_WRONLY | O_DIRECT | O_CLOEXEC | O_NOFOLLOW); }));
  struct ::stat ours {
  }, its{};
  if (direct.get() < 0 || ::fstat(fd_.get(), &ours) != 0 || ::fstat(direct.get(), &its) != 0 ||
      ours.st_dev != its.st_dev || ours.st_ino != its.st_ino)
    return Descriptor();
  // Pages of the cache and blocks of the file system, which are only written whole, must not be shared by both ways.
  if (::sysconf(_SC_PAGESIZE) > direct_unit || its.st_blksize > direct_unit) return Descriptor();
  return direct;
}

void OutputFile::write_direct(int direct, std::uint64_t offset, std::span<const std::byte> bytes) {
  const auto [written, error] = write_all(direct, to_off(label_, offset), bytes);
  // The disk's blocks are larger than a page, or a write was cut short within one: the page cache takes anything. Some
  // pages also cannot be lent to the disk at times. Errors of the disk itself (EIO, ENOSPC) are final.
  if (error == EINVAL || error == EOPNOTSUPP || error == ENOMEM)
    return write_at(offset + written, bytes.subspan(written));
  if (error != 0) fail(Errc::io, label_, "cannot write", error);
}

void OutputFile::flush() {
  if (retry([&] { return ::fdatasync(fd_.get()); }) != 0) fail(Errc::io, label_, "cannot flush", errno);
}

void OutputFile::close() {
  // Not repeated after EINTR: on Linux the descriptor is gone by then.
  const int fd = fd_.release();
  if (fd >= 0 && ::close(fd) != 0 && errno != EINTR) fail(Errc::io, label_, "cannot close", errno);
}

}  // namespace nibble
