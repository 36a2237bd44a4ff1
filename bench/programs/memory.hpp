#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>
#include <string>

namespace nibble::bench {

/// Memory that starts on a page, written once so that it is there. Where it starts decides how fast some processors
/// copy (core/memory/buffers.hpp), which would be measured instead of the codec.
class Pages {
 public:
  Pages() = default;
  explicit Pages(std::size_t bytes) : bytes_(bytes) {
    constexpr std::size_t page = 4096;
    data_.reset(static_cast<std::byte*>(std::aligned_alloc(page, (bytes + page - 1) / page * page)));
    if (!data_) throw std::bad_alloc();
    for (std::size_t i = 0; i < bytes; i += page) data_.get()[i] = std::byte{};
  }
  [[nodiscard]] std::span<std::byte> bytes() const { return {data_.get(), bytes_}; }

 private:
  struct Free {
    void operator()(std::byte* data) const noexcept { std::free(data); }
  };
  std::unique_ptr<std::byte, Free> data_;
  std::size_t bytes_ = 0;
};

/// The sum of 64-bit words, with several accumulators in vectors: what reading alone costs. Whole 512-byte groups.
[[nodiscard]] std::uint64_t sum(std::span<const std::byte> bytes);

/// The instruction set that this processor's inner loops use: "AVX2".
[[nodiscard]] std::string simd_target();

}  // namespace nibble::bench
