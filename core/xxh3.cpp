#include "core/xxh3.hpp"

#include <fmt/format.h>
// It makes the names of <xxhash.h> those of functions that choose their instruction set at run time. With AVX-512 a
// core of Zen 4 hashes 45 GB/s; built for SSE2 alone, as a distribution has to, 15.
#ifdef NIBBLE_XXHASH_DISPATCH
#include <xxh_x86dispatch.h>
#endif

#include <algorithm>
#include <cassert>
#include <new>
#include <utility>

namespace nibble {

std::string Xxh3::hex() const { return fmt::format("{:016x}{:016x}", high, low); }

Xxh3 xxh3(std::span<const std::byte> bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {hash.high64, hash.low64};
}

Xxh3Stream::Xxh3Stream() : state_(XXH3_createState()) {
  if (!state_) throw std::bad_alloc();
  reset();
}

void Xxh3Stream::reset() { XXH3_128bits_reset(state_.get()); }

void Xxh3Stream::append(std::span<const std::byte> bytes) {
  XXH3_128bits_update(state_.get(), bytes.data(), bytes.size());
}

Xxh3 Xxh3Stream::digest() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
  return {hash.high64, hash.low64};
}

Xxh3Chunks::Xxh3Chunks(std::uint64_t offset)
    : begin_((offset + chunk_bytes - 1) / chunk_bytes * chunk_bytes), end_(offset) {}

void Xxh3Chunks::append(std::span<const std::byte> bytes) {
  if (end_ < begin_) {
    const std::size_t skipped = std::min<std::uint64_t>(bytes.size(), begin_ - end_);
    end_ += skipped;
    bytes = bytes.subspan(skipped);
  }
  while (!bytes.empty()) {
    const std::uint64_t done = end_ % chunk_bytes;
    if (done == 0) {
      if (!chunk_) chunk_.emplace();
      chunk_->reset();
    }
    const std::span<const std::byte> next = bytes.first(std::min<std::uint64_t>(bytes.size(), chunk_bytes - done));
    chunk_->append(next);
    end_ += next.size();
    bytes = bytes.subspan(next.size());
    if (end_ % chunk_bytes == 0) hashes_.push_back(chunk_->digest());
  }
}

void Xxh3Chunks::append(std::span<const std::byte> bytes, Xxh3Chunks&& piece) {
  assert(piece.end_ == end_ + bytes.size());
  append(bytes.first(std::min<std::uint64_t>(bytes.size(), piece.begin_ - end_)));
  if (end_ == piece.end_) return;
  hashes_.insert(hashes_.end(), piece.hashes_.begin(), piece.hashes_.end());
  chunk_ = std::move(piece.chunk_);
  end_ = piece.end_;
}

std::vector<Xxh3> Xxh3Chunks::take() {
  assert(begin_ == 0);
  if (end_ % chunk_bytes != 0) hashes_.push_back(chunk_->digest());
  return std::move(hashes_);
}

}  // namespace nibble
