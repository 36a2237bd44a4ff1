#include "core/files/file.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>

#include "tests/support/corrupt.hpp"

namespace nibble::file_test {
namespace {

using test::error_of;

class File : public testing::Test {
 protected:
  [[nodiscard]] InputFile open(const std::string& name) const { return {directory.fd(), name, name}; }
  [[nodiscard]] std::string refused(const std::string& name) const {
    return error_of([&] { (void)open(name); });
  }

  test::TempDir dir;
  Directory directory{dir.path()};
};

std::string text_at(const InputFile& file, std::uint64_t offset, std::size_t size) {
  std::string text(size, '\0');
  file.read(offset, std::as_writable_bytes(std::span(text)));
  return text;
}

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

TEST_F(File, ReadsAnyPart) {
  dir.write("f", "0123456789");
  const InputFile file = open("f");
  EXPECT_EQ(file.size(), 10u);
  EXPECT_EQ(text_at(file, 0, 10), "0123456789");
  EXPECT_EQ(text_at(file, 3, 4), "3456");
  EXPECT_EQ(text_at(file, 10, 0), "");
  EXPECT_EQ(file.read_text(10), "0123456789");
  EXPECT_EQ(error_of([&] { (void)file.read_text(9); }), "f: has 10 bytes, more than the 9 that such a file may have");
}

TEST_F(File, OnlyRegularFilesAreOpenedAndNothingIsWaitedFor) {
  std::filesystem::create_directory(dir.path() / "d");
  ASSERT_EQ(::mkfifo((dir.path() / "p").c_str(), 0600), 0);
  std::filesystem::create_symlink("loop", dir.path() / "loop");
  std::filesystem::create_symlink("nothing", dir.path() / "broken");
  std::filesystem::create_symlink("p", dir.path() / "to_pipe");
  const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, (dir.path() / "s").c_str(), sizeof address.sun_path - 1);
  ASSERT_EQ(::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);

  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(refused("d"), "d: is a directory, not a regular file");
  EXPECT_EQ(refused("p"), "p: is a pipe, not a regular file");
  EXPECT_EQ(refused("to_pipe"), "to_pipe: is a pipe, not a regular file");
  EXPECT_EQ(refused("loop"), "loop: cannot open: Too many levels of symbolic links");
  EXPECT_EQ(refused("broken"), "broken: cannot open: No such file or directory");
  EXPECT_EQ(refused("s"), "s: cannot open: No such device or address");
  EXPECT_EQ(refused("/dev/null"), "/dev/null: is a device, not a regular file");
  EXPECT_EQ(error_of([&] { (void)InputFile(directory.fd(), std::string("p\0", 2), "p"); }),
            "p: its name contains a NUL byte");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
  ::close(socket);
}

TEST_F(File, LinksToRegularFilesAreFollowed) {
  dir.write("blobs/x", "data");
  std::filesystem::create_symlink("blobs/x", dir.path() / "link");
  EXPECT_EQ(open("link").read_text(100), "data");
}

TEST_F(File, DirectoriesAreOpenedByKind) {
  dir.write("f", "");
  EXPECT_EQ(error_of([&] { (void)Directory(dir.path() / "f"); }),
            (dir.path() / "f").string() + ": cannot open directory: Not a directory");
  EXPECT_TRUE(directory.has("f"));
  EXPECT_FALSE(directory.has("g"));
}

TEST_F(File, TruncationIsTold) {
  dir.write("f", "0123456789");
  const InputFile file = open("f");
  std::filesystem::resize_file(dir.path() / "f", 4);
  EXPECT_EQ(error_of([&] { (void)text_at(file, 0, 10); }, Errc::input_changed),
            "f: now ends at byte 4, but had 10 bytes when it was opened");
}

TEST_F(File, WhatTheSystemRefusesIsNotTheEnd) {
  const InputFile memory(AT_FDCWD, "/proc/self/mem", "memory");  // a regular file, and nothing is mapped at 0
  std::byte byte{};
  EXPECT_EQ(error_of([&] { memory.read(0, std::span(&byte, 1)); }, Errc::io),
            "memory: cannot read: Input/output error");
}

TEST_F(File, ChangesAreTold) {
  const auto changed = [](const InputFile& file) {
    return error_of([&] { file.check_unchanged(); }, Errc::input_changed);
  };
  dir.write("f", "0123456789");
  const InputFile file = open("f");
  EXPECT_EQ(changed(file), "");

  const timespec times[2] = {{0, UTIME_OMIT}, {1, 1}};
  ASSERT_EQ(::utimensat(AT_FDCWD, (dir.path() / "f").c_str(), times, 0), 0);
  EXPECT_EQ(changed(file), "f: changed while it was read");

  const InputFile longer = open("f");
  dir.write("f", "0123456789a");
  ASSERT_EQ(::utimensat(AT_FDCWD, (dir.path() / "f").c_str(), times, 0), 0);
  EXPECT_EQ(changed(longer), "f: changed while it was read");

  const InputFile replaced = open("f");
  dir.write("g", "0123456789a");
  ASSERT_EQ(::utimensat(AT_FDCWD, (dir.path() / "g").c_str(), times, 0), 0);
  std::filesystem::rename(dir.path() / "g", dir.path() / "f");
  EXPECT_EQ(changed(replaced), "f: changed while it was read");

  const InputFile removed = open("f");
  std::filesystem::remove(dir.path() / "f");
  EXPECT_EQ(changed(removed), "f: no longer exists: No such file or directory");
}

TEST_F(File, OutputIsWrittenInAnyOrder) {
  OutputFile out(directory.fd(), "o", "o");
  out.reserve(10);
  EXPECT_EQ(std::filesystem::file_size(dir.path() / "o"), 10u);
  std::thread other([&] { out.write_at(5, bytes_of("56789")); });
  out.write_at(0, bytes_of("01234"));
  other.join();
  out.flush();
  out.close();
  EXPECT_EQ(test::read_file(dir.path() / "o"), "0123456789");
}

TEST_F(File, ReserveSetsTheSizeEitherWay) {
  OutputFile out(directory.fd(), "o", "o");
  out.reserve(1000);
  out.reserve(0);
  EXPECT_EQ(std::filesystem::file_size(dir.path() / "o"), 0u);
}

TEST_F(File, OutputReplacesNothing) {
  dir.write("o", "");
  std::filesystem::create_symlink("elsewhere", dir.path() / "link");
  const auto create = [&](const std::string& name) {
    return error_of([&] { OutputFile(directory.fd(), name, name); }, Errc::output_exists);
  };
  EXPECT_EQ(create("o"), "o: cannot create: File exists");
  EXPECT_EQ(create("link"), "link: cannot create: File exists");
  EXPECT_EQ(error_of([&] { OutputFile(directory.fd(), "no/o", "no/o"); }, Errc::io),
            "no/o: cannot create: No such file or directory");
}

TEST_F(File, WritesThatEndShortAreErrors) {
  OutputFile out(directory.fd(), "o", "o");
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit limited{4, before.rlim_max};
  const auto ignored = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limited), 0);
  const std::string written = error_of([&] { out.write_at(0, bytes_of("01234")); }, Errc::io);
  const std::string reserved = error_of([&] { out.reserve(5); }, Errc::io);
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, ignored);
  EXPECT_EQ(written, "o: cannot write: File too large");  // after the 4 bytes that a short write put there
  EXPECT_EQ(reserved, "o: cannot reserve space: File too large");
}

TEST_F(File, WhatFitsNoDiskIsToldBeforeTheFirstByte) {
  OutputFile out(directory.fd(), "o", "o");
  EXPECT_THAT(error_of([&] { out.reserve(std::uint64_t{1} << 60); }, Errc::no_space),
              testing::MatchesRegex("o: 1152921504606846976 bytes do not fit, the disk has [0-9]+ free"));
  EXPECT_EQ(std::filesystem::file_size(dir.path() / "o"), 0u);
  EXPECT_EQ(error_of([&] { out.reserve(std::uint64_t{1} << 63); }, Errc::io),
            "o: offset 9223372036854775808 is beyond the largest that a file can have");
}

}  // namespace
}  // namespace nibble::file_test
