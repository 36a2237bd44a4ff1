#pragma once

#include <cstddef>
#include <memory>

namespace nibble::matmul {

/// Numbers in memory that starts with a cache line.
template <class T> class Lines {
 public:
  explicit Lines(std::size_t n)
      : lines_(std::make_unique_for_overwrite<Line[]>((n * sizeof(T) + sizeof(Line) - 1) / sizeof(Line))) {}
  [[nodiscard]] T* data() const noexcept { return reinterpret_cast<T*>(lines_.get()); }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::unique_ptr<Line[]> lines_;
};

}  // namespace nibble::matmul
