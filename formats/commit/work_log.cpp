#include "formats/commit/work_log.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

#include "nibble/error.hpp"

namespace nibble {
namespace {

struct Title {
  std::array<char, 12> text{'n', 'i', 'b', 'b', 'l', 'e', ' ', 'l', 'o', 'g', ' ', '2'};
  std::uint32_t head_bytes = 0;  // a second time, so that a damaged number does not look like a head that was cut off
};
static_assert(sizeof(Title) == 16);

constexpr std::uint64_t written_at_once = 64 << 10;
constexpr std::size_t log_piece = 16 << 10;  // about 30 tensors of one chunk

// A tensor of 16 TB has a record of that size: 16 bytes for each chunk that is hashed.
constexpr std::uint64_t max_record_bytes = 1 << 30;

struct Frame {
  std::uint64_t bytes;
  Xxh3 checksum;
};
static_assert(sizeof(Frame) == 24);

Xxh3 checksum_of(const Xxh3& before, std::string_view record) {
  const std::uint64_t bytes = record.size();
  Xxh3Stream stream;
  stream.append(std::as_bytes(std::span(&before, 1)));
  stream.append(std::as_bytes(std::span(&bytes, 1)));
  stream.append(std::as_bytes(std::span(record)));
  return stream.digest();
}

}  // namespace

void WorkLog::fail(std::string_view action, int error) const {
  throw Error(Errc::io, shown_, fmt::format("{}: {}", action, std::strerror(error)));
}

void WorkLog::refuse(std::string_view fact) const {
  throw Error(Errc::output_exists, shown_, fmt::format("cannot be resumed: {}", fact), Remedy::Kind::begin_again);
}

WorkLog::WorkLog(Descriptor file, std::string_view shown)
    : file_(std::move(file)), shown_(fmt::format("{}/{}", printable(shown), name)) {}

WorkLog::WorkLog(int work, std::string_view shown, std::string_view head)
    : WorkLog(Descriptor(openat(work, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600)), shown) {
  if (file_.get() < 0) fail("cannot create", errno);
  const Title title{.head_bytes = static_cast<std::uint32_t>(head.size())};
  if (const int error = write_all(file_.get(), 0, std::as_bytes(std::span(&title, 1))).error; error != 0)
    fail("cannot write", error);
  position_ = {sizeof title, {}};
  append(head);
  head_ = head;
  first_ = end_;
}

std::optional<WorkLog> WorkLog::find(int work, std::string_view shown) {
  WorkLog log(Descriptor(openat(work, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)), shown);
  if (log.file_.get() < 0 && errno == ENOENT) return std::nullopt;
  if (log.file_.get() < 0 && errno != ELOOP && errno != ENXIO) log.fail("cannot open", errno);
  log.find_head();
  return log.first_ == 0 ? std::nullopt : std::optional(std::move(log));
}

void WorkLog::find_head() {
  struct stat status {};
  if (file_.get() >= 0 && fstat(file_.get(), &status) != 0) fail("cannot look at it", errno);
  if (const auto problem = why_not_ours(status); !problem.empty()) refuse(problem);
  end_ = static_cast<std::uint64_t>(status.st_size);
  struct {
    Title title;
    Frame head;
  } found{};
  const Transfer got = read_all(file_.get(), 0, std::as_writable_bytes(std::span(&found, 1)));
  if (got.error != 0) fail("cannot read", got.error);
  // A run that was stopped before all of its head was on the disk has finished nothing.
  if (got.bytes < sizeof found || found.title.text[0] == '\0' || found.head.bytes == 0) return;
  if (found.title.text != Title().text) refuse("another version of nibble wrote it");
  if (found.head.bytes != found.title.head_bytes) refuse("it is damaged");
  if (found.head.bytes > end_ - sizeof found) return;
  position_ = {sizeof found.title, {}};
  auto head = read();
  if (!head) refuse("it is damaged");
  head_ = std::move(*head);
  first_ = position_.offset;
}

std::optional<std::string> WorkLog::read() {
  write();
  Frame frame{};
  if (end_ - position_.offset < sizeof frame) return std::nullopt;
  const Transfer got =
      read_all(file_.get(), static_cast<off_t>(position_.offset), std::as_writable_bytes(std::span(&frame, 1)));
  if (got.error != 0) fail("cannot read", got.error);
  const std::uint64_t begin = position_.offset + sizeof frame;
  if (got.bytes < sizeof frame || frame.bytes > std::min(end_ - begin, max_record_bytes)) return std::nullopt;
  std::string record(frame.bytes, '\0');
  const Transfer rest = read_all(file_.get(), static_cast<off_t>(begin), std::as_writable_bytes(std::span(record)));
  if (rest.error != 0) fail("cannot read", rest.error);
  if (rest.bytes < record.size() || checksum_of(position_.checksum, record) != frame.checksum) return std::nullopt;
  position_ = {begin + record.size(), frame.checksum};
  return record;
}

void WorkLog::append(std::string_view record) {
  const Frame frame{record.size(), checksum_of(position_.checksum, record)};
  if (pending_.empty()) {
    if (end_ > position_.offset && ftruncate(file_.get(), static_cast<off_t>(position_.offset)) != 0)
      fail("cannot cut off", errno);
    end_ = position_.offset;
  }
  pending_.append(reinterpret_cast<const char*>(&frame), sizeof frame).append(record);
  position_ = {end_ + pending_.size(), frame.checksum};
  if (end_ < written_at_once || pending_.size() >= log_piece) write();
}

void WorkLog::write() {
  const Transfer put = write_all(file_.get(), static_cast<off_t>(end_), std::as_bytes(std::span(pending_)));
  if (put.error != 0) fail("cannot write", put.error);
  end_ += pending_.size();
  pending_.clear();
}

void WorkLog::flush() {
  write();
  if (fdatasync(file_.get()) != 0) fail("cannot flush", errno);
}

}  // namespace nibble
