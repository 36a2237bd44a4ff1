#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "nibble/error.hpp"

namespace nibble {

/// Code, libraries, an ordinary header: 7 to 10 MiB as peak RSS on x86-64, and a third more than that for machines
/// with other libraries. Every estimate of a run's memory begins with it.
inline constexpr std::uint64_t program_bytes = 14 << 20;

/// "WHAT 15.68 MB of memory, the limit is 10.00 MB"; in bytes where both would be the same in units. `what` ends
/// with its verb.
[[nodiscard]] Error too_little_memory(std::string_view what, std::uint64_t needed, std::uint64_t allowed);

/// How much memory opening a checkpoint may take. Readers count what they keep while they parse, so a file that asks
/// for too much is refused before the memory is taken.
class MemoryLimit {
 public:
  MemoryLimit() = default;  ///< none

  /// `max_memory` is for the whole program.
  explicit MemoryLimit(std::uint64_t max_memory);

  /// Throws Error(no_space), "<label>: ...", if `bytes` more are too many.
  void take(std::uint64_t bytes, std::string_view label);
  void give_back(std::uint64_t bytes) noexcept { taken_ -= bytes; }

  [[nodiscard]] std::uint64_t taken() const noexcept { return taken_; }

 private:
  std::uint64_t max_memory_ = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t left_ = max_memory_;  // beside the program
  std::uint64_t taken_ = 0;
};

/// Counts memory as taken until the end of the scope.
class TakenMemory {
 public:
  TakenMemory(MemoryLimit& limit, std::string_view label) : limit_(limit), label_(label) {}
  TakenMemory(const TakenMemory&) = delete;
  TakenMemory& operator=(const TakenMemory&) = delete;
  ~TakenMemory() { limit_.give_back(bytes_); }

  /// As MemoryLimit::take().
  void add(std::uint64_t bytes) {
    limit_.take(bytes, label_);
    bytes_ += bytes;
  }

  [[nodiscard]] MemoryLimit& limit() const noexcept { return limit_; }

 private:
  MemoryLimit& limit_;
  std::string label_;
  std::uint64_t bytes_ = 0;
};

}  // namespace nibble
