#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/files/file.hpp"
#include "core/xxh3.hpp"

namespace nibble {

/// What a run has finished, for a run that resumes it: a head, which says what the run does, and records. It is a file
/// in the work directory:
///
///   title    12 bytes, and the number of bytes of the head (u32)
///   head     a record
///   record   the number of its bytes (u64), a checksum (XXH3-128), the bytes
///
/// A checksum covers the number, the bytes, and the checksum of the record before it. So a record counts only if it was
/// written behind exactly those that are before it. The first one that does not count is the end: a run that was killed
/// may have written a part of it.
///
/// A record says what its writer believed. Bytes that it tells of have to be compared before they count.
class WorkLog {
 public:
  static constexpr const char* name = "log";

  /// A new one. `shown` is the work directory, for messages. Throws Error(io).
  WorkLog(int work, std::string_view shown, std::string_view head);

  /// That of an earlier run; nothing if there is none, or if its head was not written completely. Throws
  /// Error(output_exists) if it does not count: its head is damaged, another version wrote it, or another user could
  /// have; Error(io).
  [[nodiscard]] static std::optional<WorkLog> find(int work, std::string_view shown);

  [[nodiscard]] const std::string& head() const noexcept { return head_; }

  /// Between two records: the next one is read or written there.
  struct Position {
    std::uint64_t offset = 0;
    Xxh3 checksum{};  // of the record before
  };
  [[nodiscard]] const Position& position() const noexcept { return position_; }
  void go_to(const Position& position) {
    write();
    position_ = position;
  }

  /// The next record; nothing at the end. Throws Error(io).
  [[nodiscard]] std::optional<std::string> read();

  /// Adds a record, which becomes the last one. Small records are written together, but for the first 64 KiB of them.
  /// Throws Error(io).
  void append(std::string_view record);

  /// Writes the records that are not written yet. Throws Error(io).
  void write();

  /// write(), and returns when they are on the disk. Throws Error(io).
  void flush();

  /// Whether it has any record.
  [[nodiscard]] bool has_records() const noexcept { return end_ + pending_.size() > first_; }

 private:
  WorkLog(Descriptor file, std::string_view shown);
  [[noreturn]] void fail(std::string_view action, int error) const;
  [[noreturn]] void refuse(std::string_view fact) const;
  void find_head();

  Descriptor file_;
  std::string shown_;
  std::string head_;
  Position position_;
  std::uint64_t first_ = 0;  // where the first record begins
  std::uint64_t end_ = 0;    // of the file
  std::string pending_;      // records that come there
};

}  // namespace nibble
