#include "core/files/file_scratch.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "core/files/file.hpp"
#include "nibble/error.hpp"

namespace nibble {
namespace {

// The file loses its name before it is used, so it disappears with its process.
class FileScratch final : public Scratch {
 public:
  FileScratch(int directory, std::string label) : label_(std::move(label)) {
    fd_ = Descriptor(openat(directory, ".", O_RDWR | O_TMPFILE | O_CLOEXEC, 0600));
    if (fd_.get() >= 0) return;
    // Not every file system supports files without a name. In a folder that all users share, any name may be taken.
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
    if (const int error = write_all(fd_.get(), static_cast<off_t>(offset), bytes).error; error != 0)
      fail("cannot write a temporary file", error);
  }

  void read(std::uint64_t offset, std::span<std::byte> out) const override {
    const Transfer done = read_all(fd_.get(), static_cast<off_t>(offset), out);
    if (done.bytes < out.size()) fail("cannot read a temporary file", done.error != 0 ? done.error : EIO);
  }

 private:
  static constexpr int attempts = 100;

  [[noreturn]] void fail(std::string_view action, int error) const {
    const Errc code = error == ENOSPC || error == EDQUOT ? Errc::no_space : Errc::io;
    throw Error(code, label_, fmt::format("{}: {}", action, std::strerror(error)));
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
