#include "formats/scratch.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "formats/file.hpp"
#include "nibble/error.hpp"

namespace nibble {
namespace {

// The file has lost its name by the time it is used, so it ends with its process.
class FileScratch final : public Scratch {
 public:
  FileScratch(int directory, std::string label) : label_(std::move(label)) {
    fd_ = Descriptor(openat(directory, ".", O_RDWR | O_TMPFILE | O_CLOEXEC, 0600));
    if (fd_.get() >= 0) return;
    // Not every file system has files without a name. In a folder of all users any name may be taken.
    std::string name;
    for (int attempt = 0; attempt < attempts && fd_.get() < 0; ++attempt) {
      name = fmt::format(".scratch-{}-{}", getpid(), attempt);
      fd_ = Descriptor(openat(directory, name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
      if (fd_.get() < 0 && errno != EEXIST) break;
    }
    if (fd_.get() < 0) fail("cannot create a temporary file", errno);
    if (unlinkat(directory, name.c_str(), 0) != 0) fail("cannot remove the name of a temporary file", errno);
  }

  void write(std::uint64_t offset, std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const ssize_t put = ::pwrite(fd_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
      if (put < 0 && errno == EINTR) continue;
      if (put <= 0) fail("cannot write a temporary file", put < 0 ? errno : EIO);
      bytes = bytes.subspan(static_cast<std::size_t>(put));
      offset += static_cast<std::uint64_t>(put);
    }
  }

  void read(std::uint64_t offset, std::span<std::byte> out) const override {
    while (!out.empty()) {
      const ssize_t got = ::pread(fd_.get(), out.data(), out.size(), static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) fail("cannot read a temporary file", got < 0 ? errno : EIO);
      out = out.subspan(static_cast<std::size_t>(got));
      offset += static_cast<std::uint64_t>(got);
    }
  }

 private:
  static constexpr int attempts = 100;

  [[noreturn]] void fail(std::string_view action, int error) const {
    const Errc code = error == ENOSPC || error == EDQUOT ? Errc::no_space : Errc::io;
    throw Error(code, fmt::format("{}: {}: {}", label_, action, std::strerror(error)));
  }

  std::string label_;
  Descriptor fd_;
};

}  // namespace

std::unique_ptr<Scratch> make_file_scratch(int directory, std::string label) {
  return std::make_unique<FileScratch>(directory, std::move(label));
}

std::unique_ptr<Scratch> make_file_scratch(const std::filesystem::path& directory) {
  const Directory opened(directory);
  return make_file_scratch(opened.fd(), printable(directory.string()));
}

}  // namespace nibble
