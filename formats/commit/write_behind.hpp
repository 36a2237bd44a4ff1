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

#include "core/buffers.hpp"
#include "core/file.hpp"

namespace nibble {

/// Writes to a file past the page cache, while its caller goes on: no copy, no lock on the file, and nothing left to
/// flush at the end. docs/performance.md says how much that gains; `bench_stages write` and the same with
/// `--through-cache` compare the two ways alone.
///
/// The disk takes whole pages. So bytes that end within a page wait for the bytes that follow them, and are put in
/// front of those; if none follow, they go through the page cache, as short writes do. A page is never written both
/// ways at once, because a page that is written past the cache holds only bytes that were handed over here.
///
/// Where the file system has no such way (as tmpfs before Linux 6.6), everything goes through the page cache.
class WriteBehind {
 public:
  /// `file` is the file `name` of `directory`. At most `max_tasks` buffers are kept at a time, by as many threads,
  /// which do nothing but wait for the disk.
  WriteBehind(OutputFile& file, int directory, const std::string& name, std::size_t max_tasks);
  WriteBehind(const WriteBehind&) = delete;
  WriteBehind& operator=(const WriteBehind&) = delete;
  ~WriteBehind();  // waits for writes that have begun, and gives up the others

  /// How buffers for write() are to be lent.
  [[nodiscard]] Buffers::Way way() const noexcept {
    return direct_.get() >= 0 ? Buffers::Way::direct : Buffers::Way::copied;
  }

  /// Takes a buffer. Throws what an earlier write met. One thread at a time, for which others may wait: so that
  /// somebody is there to write it is left to wake().
  void write(std::uint64_t offset, Buffers::Loan bytes);

  /// Wakes a thread for each buffer that was taken since, about 10 us each. Thread-safe.
  void wake();

  /// Returns when all is written, though not flushed. Throws what a write met.
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

  // The last bytes that were handed over, as far as they do not fill a page, and where they end.
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
