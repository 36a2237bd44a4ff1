#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "core/files/file.hpp"
#include "core/memory/buffers.hpp"

namespace nibble {

/// Writes to a file past the page cache while the caller goes on. Nothing is copied, the file is not locked, and little
/// is left to flush at the end. docs/performance.md has the gain; `bench_stages write` and the same with
/// `--through-cache` compare the two ways alone.
///
/// The disk takes whole pages. So bytes that end within a page wait for the bytes that follow them, and are put in
/// front of those; if none follow, they go through the page cache, as short writes do. A page is never written both
/// ways at once, because a page that is written past the cache holds only bytes that were handed over here.
///
/// If the file system cannot do this (tmpfs before Linux 6.6), everything goes through the page cache.
class WriteBehind {
 public:
  /// `file` is the file `name` of `directory`. At most `max_tasks` buffers are kept at a time, by as many threads,
  /// which do nothing but wait for the disk.
  WriteBehind(OutputFile& file, int directory, const std::string& name, std::size_t max_tasks);
  WriteBehind(const WriteBehind&) = delete;
  WriteBehind& operator=(const WriteBehind&) = delete;
  ~WriteBehind();  // waits for writes that have begun, and gives up the others

  /// The way for which buffers for write() have to be lent.
  [[nodiscard]] Buffers::Way way() const noexcept {
    return direct_.get() >= 0 ? Buffers::Way::direct : Buffers::Way::copied;
  }

  /// Takes a buffer. Throws the error of an earlier write. Call it from one thread at a time. Others may wait for that
  /// thread, so it does not start any writer: wake() does.
  void write(std::uint64_t offset, Buffers::Loan bytes);

  /// Wakes a thread for each buffer that was taken since, about 10 us each. Thread-safe.
  void wake();

  /// Returns when everything is written, though not flushed. Throws the error of a write.
  void drain();

 private:
  // Whole pages of the file, somewhere in a buffer.
  struct Task {
    std::uint64_t offset = 0;
    std::span<const std::byte> bytes;
    Buffers::Loan loan;
  };

  void enqueue(Task task);
  bool add_thread();
  void write_tail();
  void work();

  OutputFile& file_;
  Descriptor direct_;
  std::size_t max_tasks_;

  // The last bytes that were passed to write() and do not fill a page, and where they end.
  std::array<std::byte, Buffers::page> tail_;
  std::size_t tail_bytes_ = 0;
  std::uint64_t tail_end_ = 0;

  std::mutex mutex_;
  std::condition_variable to_do_, done_;
  std::deque<Task> tasks_;
  std::size_t in_work_ = 0;
  std::size_t to_wake_ = 0;
  std::exception_ptr failure_;
  bool stopping_ = false;
  std::vector<std::jthread> threads_;
};

}  // namespace nibble
