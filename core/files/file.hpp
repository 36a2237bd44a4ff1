#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace nibble {

/// Owns a file descriptor.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) noexcept : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept;
  Descriptor& operator=(Descriptor&& other) noexcept;
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor();

  [[nodiscard]] int get() const noexcept { return fd_; }
  [[nodiscard]] int release() noexcept;

 private:
  int fd_;
};

/// How far a read or write got: to the end of the span, or to where it stopped.
struct Transfer {
  std::size_t bytes = 0;
  int error = 0;  ///< an errno; 0 if nothing failed: if bytes are missing then, the file ended
};

/// pread() and pwrite() until all is done: signals interrupt them, and a call may move less than it was asked to.
[[nodiscard]] Transfer read_all(int fd, off_t offset, std::span<std::byte> out);
[[nodiscard]] Transfer write_all(int fd, off_t offset, std::span<const std::byte> bytes);

/// A directory that files are opened in. What happens to its path later does not matter: a name is looked up in the
/// directory that was opened.
class Directory {
 public:
  /// Throws Error(bad_input) if it does not exist or is something else, Error(io) if the system refuses.
  explicit Directory(const std::filesystem::path& path);

  [[nodiscard]] int fd() const noexcept { return fd_.get(); }

  /// True if there is anything of that name, even a broken link.
  [[nodiscard]] bool has(const std::string& name) const;

 private:
  Descriptor fd_;
};

class OpenFiles;

/// A regular file, open for reading. Thread-safe.
///
/// `label` is its name in errors. Links are followed; pipes, devices, sockets and directories are refused and never
/// waited for. Throws Error(bad_input) if it is missing or not a regular file, Error(io) if the system refuses.
class InputFile {
 public:
  /// `directory` (a descriptor, or AT_FDCWD) is used by check_unchanged() again and must stay open until then. A file
  /// among `files` may be closed and opened again between two reads; they must outlive it.
  InputFile(int directory, std::string name, std::string label, OpenFiles* files = nullptr);

  [[nodiscard]] const std::string& label() const noexcept { return label_; }
  [[nodiscard]] std::uint64_t size() const noexcept { return identity_.size; }

  /// Fills `out` from `offset` on. Throws Error(input_changed) if the file ends before that, or if it is no longer the
  /// same when it has to be opened again; Error(io).
  void read(std::uint64_t offset, std::span<std::byte> out) const;

  /// Throws Error(bad_input) if the file has more than `limit` bytes.
  void check_size(std::uint64_t limit) const;

  /// All of the file. Throws Error(bad_input) if it has more than `limit` bytes.
  [[nodiscard]] std::string read_text(std::uint64_t limit) const;

  /// Throws Error(input_changed) if size, modification time or inode differ from when the file was opened, or if
  /// the name now stands for another file.
  void check_unchanged() const;

 private:
  struct Identity {
    std::uint64_t device = 0, inode = 0, size = 0;
    std::int64_t seconds = 0, nanoseconds = 0;
    bool operator==(const Identity&) const = default;
  };
  static Identity identity_of(const struct ::stat& status);
  [[nodiscard]] Descriptor open() const;
  [[nodiscard]] Descriptor open_again() const;
  [[noreturn]] void refuse_changed() const;
  void read_from(int fd, std::uint64_t offset, std::span<std::byte> out) const;

  int directory_;
  std::string name_, label_;
  Descriptor fd_;  // unless it is among files_
  OpenFiles* files_;
  std::size_t number_ = 0;  // among them
  Identity identity_;
};

/// Why a file that an earlier run may have written does not count as its own: somebody else could have put it there, or
/// could still write it. Empty if it counts.
[[nodiscard]] std::string_view why_not_ours(const struct ::stat& file);

/// A new file, open for writing, at exactly the given name; whether and how it gets another one is up to the caller.
/// write_at() is thread-safe. After an error the content of the file is unspecified; it is never removed here.
class OutputFile {
 public:
  /// Throws Error(output_exists) if the name is taken (by a link too), Error(no_space), Error(io).
  OutputFile(int directory, const std::string& name, std::string label, ::mode_t mode = 0666);

  /// The file of that name that an earlier run has left in a directory that nobody else can enter, if it counts as its
  /// own and has `bytes` bytes. What was written to it is on the disk, and is read from there, not from the page cache.
  /// It gets the mode of the directory's new files.
  /// Throws Error(io) if it cannot be flushed.
  [[nodiscard]] static std::optional<OutputFile> reopen(int directory, const std::string& name, std::string label,
                                                        std::uint64_t bytes);

  /// Reads bytes of a file that was reopened. False if they cannot be read.
  [[nodiscard]] bool read_at(std::uint64_t offset, std::span<std::byte> out) const;

  [[nodiscard]] const std::string& label() const noexcept { return label_; }

  /// Gives the file its final size, and the blocks for it where the file system can.
  /// Throws Error(no_space) if they do not fit, Error(io).
  void reserve(std::uint64_t bytes);

  /// Cuts off what lies beyond `bytes`. Throws Error(io).
  void truncate(std::uint64_t bytes);

  /// Throws Error(io), also if the disk has become full, which can still happen after reserve().
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes);

  /// Opens the same file again for write_direct(), past the page cache. Returns no descriptor if the file system does
  /// not offer that, or not in units of 4096 bytes. The file must still have the name it was given.
  [[nodiscard]] Descriptor open_direct(int directory, const std::string& name) const;

  /// As write_at(), through what open_direct() gave. Offset and size in the file and the address in memory are
  /// multiples of 4096; where the disk asks for more than that, it is write_at().
  void write_direct(int direct, std::uint64_t offset, std::span<const std::byte> bytes);

  /// Returns when the bytes are on the disk. A failure is final: what was written may be lost already, and asking
  /// again would succeed without writing it.
  void flush();

  /// Closes the file. Throws Error(io) if the system reports only now that something was not written.
  void close();

 private:
  OutputFile(std::string label, Descriptor fd) : label_(std::move(label)), fd_(std::move(fd)) {}

  std::string label_;
  Descriptor fd_;
};

}  // namespace nibble
