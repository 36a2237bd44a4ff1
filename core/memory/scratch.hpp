#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

namespace nibble {

/// Temporary storage: in memory, or in a file if there are too many bytes. The content is unspecified until it is
/// written. Disjoint ranges may be written concurrently; read only after that.
class Scratch {
 public:
  virtual ~Scratch() = default;
  virtual void write(std::uint64_t offset, std::span<const std::byte> bytes) = 0;
  virtual void read(std::uint64_t offset, std::span<std::byte> out) const = 0;

  /// A buffer for `size` bytes, to be filled and then passed to write() with the same offset: their final memory, or
  /// `room`.
  [[nodiscard]] virtual std::span<std::byte> lend(std::uint64_t /*offset*/, std::size_t size,
                                                  std::vector<std::byte>& room) {
    room.resize(size);
    return room;
  }

  /// `size` bytes from `offset` on, valid until anything is written: in their own memory, or read into `room`.
  [[nodiscard]] virtual std::span<const std::byte> view(std::uint64_t offset, std::size_t size,
                                                        std::vector<std::byte>& room) const {
    room.resize(size);
    read(offset, room);
    return room;
  }

  /// Calls f(bytes) for bytes [begin, end), in pieces of at most `piece` bytes.
  template <class F> void for_each_piece(std::uint64_t begin, std::uint64_t end, F&& f) const {
    std::vector<std::byte> room;
    for (std::uint64_t at = begin; at < end; at += piece)
      f(view(at, static_cast<std::size_t>(std::min(end - at, piece)), room));
  }
  static constexpr std::uint64_t piece = std::uint64_t{1} << 18;
};

/// Storage in memory that is not touched before it is written.
class MemoryScratch final : public Scratch {
 public:
  explicit MemoryScratch(std::uint64_t bytes);
  [[nodiscard]] std::uint64_t size() const noexcept { return bytes_.get_deleter().size; }
  void write(std::uint64_t offset, std::span<const std::byte> bytes) override {
    if (!bytes.empty() && bytes.data() != bytes_.get() + offset)
      std::memcpy(bytes_.get() + offset, bytes.data(), bytes.size());
  }
  [[nodiscard]] std::span<std::byte> lend(std::uint64_t offset, std::size_t size,
                                          std::vector<std::byte>& /*room*/) override {
    return at(offset, size);
  }
  void read(std::uint64_t offset, std::span<std::byte> out) const override {
    if (!out.empty()) std::memcpy(out.data(), bytes_.get() + offset, out.size());
  }
  [[nodiscard]] std::span<const std::byte> view(std::uint64_t offset, std::size_t size,
                                                std::vector<std::byte>& /*room*/) const override {
    return at(offset, size);
  }

 private:
  // An empty range is an empty span: its offset may lie past the end.
  [[nodiscard]] std::span<std::byte> at(std::uint64_t offset, std::size_t size) const {
    return size == 0 ? std::span<std::byte>() : std::span(bytes_.get() + offset, size);
  }

  struct Free {
    std::uint64_t size;
    void operator()(std::byte* memory) const noexcept;
  };
  std::unique_ptr<std::byte[], Free> bytes_;
};

/// Storage in an unnamed file in this directory, which the Scratch removes. Throws Error(bad_input) if there is no such
/// directory, Error(io), Error(no_space).
[[nodiscard]] std::unique_ptr<Scratch> make_file_scratch(const std::filesystem::path& directory);

}  // namespace nibble
