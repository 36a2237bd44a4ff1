#include "core/xxh3.hpp"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <random>

namespace nibble::xxh3_test {
namespace {

constexpr std::size_t mib = 1 << 20;

std::vector<std::byte> random_bytes(std::size_t n) {
  std::mt19937_64 random(n);
  std::vector<std::byte> bytes(n);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// In one go, by the functions of libxxhash that choose no instruction set.
std::vector<Xxh3> expected(std::span<const std::byte> bytes) {
  std::vector<Xxh3> hashes;
  for (std::size_t at = 0; at < bytes.size(); at += mib) {
    const XXH128_hash_t hash = XXH3_128bits(bytes.data() + at, std::min(mib, bytes.size() - at));
    hashes.push_back({hash.high64, hash.low64});
  }
  return hashes;
}

// Pieces of up to `longest` bytes, the last one hashed first, then joined in order.
std::vector<Xxh3> in_pieces(std::span<const std::byte> bytes, std::size_t longest) {
  std::mt19937_64 random(longest);
  std::vector<std::span<const std::byte>> pieces;
  for (std::size_t at = 0; at < bytes.size(); at += pieces.back().size())
    pieces.push_back(bytes.subspan(at, std::min<std::size_t>(1 + random() % longest, bytes.size() - at)));
  std::vector<Xxh3Chunks> hashed;
  std::uint64_t offset = bytes.size();
  for (std::size_t i = pieces.size(); i-- > 0;) {
    Xxh3Chunks& piece = hashed.emplace_back(offset -= pieces[i].size());
    const std::size_t first = random() % (pieces[i].size() + 1);
    piece.append(pieces[i].first(first));
    piece.append(pieces[i].subspan(first));
  }
  Xxh3Chunks whole;
  for (const std::span<const std::byte> piece : pieces) {
    whole.append(piece, std::move(hashed.back()));
    hashed.pop_back();
  }
  return whole.take();
}

TEST(Xxh3, ChunksAreThoseOfTheLibraryForEveryCut) {
  for (const std::size_t n : {std::size_t{0}, std::size_t{1}, std::size_t{240}, std::size_t{241}, mib - 1, mib, mib + 1,
                              2 * mib, 3 * mib + 777}) {
    const auto bytes = random_bytes(n);
    const auto hashes = expected(bytes);
    for (const std::size_t longest : {std::size_t{7777}, mib / 3, mib, 2 * mib + 5, 5 * mib})
      ASSERT_EQ(in_pieces(bytes, longest), hashes) << n << " bytes, in pieces of up to " << longest;
  }
}

// What a pipeline makes where the sizes of rows and blocks are powers of two.
TEST(Xxh3, PiecesOfWholeChunksNeedNoByteAgain) {
  const auto bytes = random_bytes(2 * mib + 100);
  Xxh3Chunks first, rest(mib);
  first.append(std::span(bytes).first(mib));
  rest.append(std::span(bytes).subspan(mib));
  Xxh3Chunks whole;
  const std::vector<std::byte> forgotten(2 * mib + 100);
  whole.append(std::span(forgotten).first(mib), std::move(first));
  whole.append(std::span(forgotten).subspan(mib), std::move(rest));
  EXPECT_EQ(whole.take(), expected(bytes));
}

TEST(Xxh3, AStreamIsThatOfAllItsPieces) {
  const std::vector<std::byte> bytes(3 << 20, std::byte{7});
  Xxh3Stream stream;
  stream.append(std::span(bytes).first(5));
  stream.append(std::span(bytes).subspan(5));
  EXPECT_EQ(stream.digest(), xxh3(bytes));
  stream.reset();
  EXPECT_EQ(stream.digest(), xxh3({}));
}

TEST(Xxh3, OfNothingIsThePublishedOne) { EXPECT_EQ(xxh3({}).hex(), "99aa06d3014798d86001c324468d497f"); }

}  // namespace
}  // namespace nibble::xxh3_test
