#pragma once

#include <hwy/cache_control.h>

#include <algorithm>
#include <cstddef>
#include <memory>

#include "quant/simd/prefetch.hpp"

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

/// Lines that are asked for into the second cache, a few at a time: those of some rows, then others that follow each
/// other. They may lie past the end of what is there.
class LinesAhead {
 public:
  LinesAhead() = default;
  /// Rows are `stride` bytes apart, and each has the lines that start less than `row_bytes` after it does.
  LinesAhead(const void* first, std::size_t rows, std::size_t row_bytes, std::size_t stride)
      : row_(static_cast<const std::byte*>(first)), stride_(stride), row_bytes_(row_bytes) {
    left_ = rows * ((row_bytes + line_bytes - 1) / line_bytes);
  }

  /// These lines come after the rows.
  void append(CacheLines lines) { others_ = lines; }

  [[nodiscard]] std::size_t left() const { return left_ + others_.count; }
  [[nodiscard]] std::size_t left_of_rows() const { return left_; }
  void ask(std::size_t lines) {
    for (; lines > 0 && left_ > 0; --lines, --left_) {
      prefetch_to_l2(row_ + at_);
      at_ += line_bytes;
      if (at_ < row_bytes_) continue;
      at_ = 0;
      row_ += stride_;
    }
    for (lines = std::min(lines, others_.count); lines > 0; --lines, --others_.count) {
      prefetch_to_l2(others_.first);
      others_.first += line_bytes;
    }
  }

 private:
  const std::byte* row_ = nullptr;
  std::size_t stride_ = 0, row_bytes_ = 0, at_ = 0, left_ = 0;
  CacheLines others_{};
};

/// Asks for lines from memory.
inline void prefetch(CacheLines lines) {
  for (std::size_t i = 0; i < lines.count; ++i) hwy::Prefetch(lines.first + i * line_bytes);
}

}  // namespace nibble::matmul
