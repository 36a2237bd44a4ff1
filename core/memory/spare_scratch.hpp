#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "core/memory/scratch.hpp"

namespace nibble {

/// Keeps the memory of finished tensors for the next ones, because the system would have to clear new pages first. One
/// scratch is kept, the largest. Not thread-safe.
class SpareScratch {
 public:
  /// `keeps`: whether there is memory for a kept scratch beside that of the next tensor, which may be larger, that is,
  /// whether ConversionMemory::spare_bytes is not 0. Otherwise nothing is kept.
  explicit SpareScratch(bool keeps) noexcept : keeps_(keeps) {}

  /// The kept scratch, if it is large enough, or a new one.
  [[nodiscard]] std::unique_ptr<MemoryScratch> make(std::uint64_t bytes) {
    if (bytes > 0 && kept_ && bytes <= kept_->size()) return std::move(kept_);
    return std::make_unique<MemoryScratch>(bytes);
  }

  /// Takes back the scratch of a finished tensor. A scratch in a file is closed.
  void keep(std::unique_ptr<Scratch> scratch) {
    auto* const memory = dynamic_cast<MemoryScratch*>(scratch.get());
    if (!keeps_ || memory == nullptr || memory->size() <= kept_bytes()) return;
    (void)scratch.release();
    kept_.reset(memory);
  }

  [[nodiscard]] std::uint64_t kept_bytes() const noexcept { return kept_ ? kept_->size() : 0; }

 private:
  bool keeps_;
  std::unique_ptr<MemoryScratch> kept_;
};

}  // namespace nibble
