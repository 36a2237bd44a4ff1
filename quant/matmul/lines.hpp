#pragma once

#include <hwy/cache_control.h>

#include <cstddef>
#include <memory>

namespace nibble::matmul {

inline constexpr std::size_t line_bytes = 64;

/// Numbers in memory that starts with a cache line.
template <class T> class Lines {
 public:
  explicit Lines(std::size_t n)
      : lines_(std::make_unique_for_overwrite<Line[]>((n * sizeof(T) + sizeof(Line) - 1) / sizeof(Line))) {}
  [[nodiscard]] T* data() const noexcept { return reinterpret_cast<T*>(lines_.get()); }

 private:
  struct alignas(line_bytes) Line {
    std::byte bytes[line_bytes];
  };
  std::unique_ptr<Line[]> lines_;
};

/// Cache lines that are only asked for, so that they may lie past the end of what is there.
struct CacheLines {
  const std::byte* first = nullptr;
  std::size_t count = 0;

  /// The share of parts [begin, end) if the lines are split evenly into `all` parts, of which there is one at least.
  [[nodiscard]] CacheLines parts(std::size_t begin, std::size_t end, std::size_t all) const {
    const std::size_t at = count * begin / all;
    return {first + at * line_bytes, count * end / all - at};
  }
};

/// Asks for lines from memory.
inline void prefetch(CacheLines lines) {
  for (std::size_t i = 0; i < lines.count; ++i) hwy::Prefetch(lines.first + i * line_bytes);
}

}  // namespace nibble::matmul
