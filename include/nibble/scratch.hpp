#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>

namespace nibble {

/// Bytes that are kept for a while: in memory, or in a file where they are too many. Of unspecified content until they
/// are written. Disjoint ranges may be written concurrently; reading comes after.
class Scratch {
 public:
  virtual ~Scratch() = default;
  virtual void write(std::uint64_t offset, std::span<const std::byte> bytes) = 0;
  virtual void read(std::uint64_t offset, std::span<std::byte> out) const = 0;
};

/// In memory, which is not touched before it is written.
class MemoryScratch final : public Scratch {
 public:
  explicit MemoryScratch(std::uint64_t bytes) : bytes_(std::make_unique_for_overwrite<std::byte[]>(bytes)) {}
  void write(std::uint64_t offset, std::span<const std::byte> bytes) override {
    if (!bytes.empty()) std::memcpy(bytes_.get() + offset, bytes.data(), bytes.size());
  }
  void read(std::uint64_t offset, std::span<std::byte> out) const override {
    if (!out.empty()) std::memcpy(out.data(), bytes_.get() + offset, out.size());
  }

 private:
  std::unique_ptr<std::byte[]> bytes_;
};

}  // namespace nibble
