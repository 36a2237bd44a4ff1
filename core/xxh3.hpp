#pragma once

#include <xxhash.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace nibble {

/// XXH3-128 (seed 0), made by libxxhash.
struct Xxh3 {
  std::uint64_t high;
  std::uint64_t low;
  /// 32 hexadecimal digits, as `xxhsum -H128` prints them.
  [[nodiscard]] std::string hex() const;
  bool operator==(const Xxh3&) const = default;
};

[[nodiscard]] Xxh3 xxh3(std::span<const std::byte> bytes);

/// The XXH3-128 of bytes that come in pieces.
class Xxh3Stream {
 public:
  Xxh3Stream();
  void reset();
  void append(std::span<const std::byte> bytes);
  [[nodiscard]] Xxh3 digest() const;

 private:
  struct FreeState {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, FreeState> state_;
};

/// The XXH3-128 of every MiB of a part, counted from the part's first byte. The last chunk may be shorter. A part
/// without bytes has no chunk.
///
/// A chunk is small enough that most are hashed where a batch is encoded, on any thread, and large enough that the
/// hashes of 1 TB take 36 MB in nibble.json. Its size never depends on memory or threads.
///
/// A piece of a part is hashed by a Xxh3Chunks of its own, which begins at the piece's offset. The pieces are then
/// joined in order. Bytes in front of the first chunk that begins in a piece are only hashed when it is joined.
class Xxh3Chunks {
 public:
  static constexpr std::uint64_t chunk_bytes = 1 << 20;

  /// For the bytes of a part from `offset` on.
  explicit Xxh3Chunks(std::uint64_t offset = 0);

  /// Hashes the next bytes.
  void append(std::span<const std::byte> bytes);

  /// Appends the bytes of a piece, which were appended to `piece` before. The piece starts where this one ends.
  void append(std::span<const std::byte> bytes, Xxh3Chunks&& piece);

  /// The hashes of all chunks. Call it once, when every byte of the part has been appended.
  [[nodiscard]] std::vector<Xxh3> take();

 private:
  std::uint64_t begin_;  // of the first chunk that is hashed here
  std::uint64_t end_;    // of the bytes so far
  std::vector<Xxh3> hashes_;
  std::optional<Xxh3Stream> chunk_;  // that end_ is in
};

}  // namespace nibble
