#include "core/xxh3.hpp"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <cstdio>
#include <random>

#include "tests/quant/codecs/codec_support.hpp"

namespace nibble::xxh3_test {
namespace {

std::vector<std::byte> random_bytes(std::size_t n) {
  std::mt19937_64 random(n);
  std::vector<std::byte> bytes(n);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

std::string expected(std::span<const std::byte> bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  return text;
}

// Cuts the bytes into pieces of up to `longest`; the sums come backwards, before anything is appended.
std::string in_pieces(std::span<const std::byte> bytes, std::size_t longest) {
  std::mt19937_64 random(longest);
  std::vector<std::span<const std::byte>> pieces;
  std::vector<std::uint64_t> offsets;
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t n = std::min<std::size_t>(1 + random() % longest, bytes.size() - at);
    pieces.push_back(bytes.subspan(at, n));
    offsets.push_back(at);
    at += n;
  }
  Xxh3 hash(bytes.size());
  std::vector<Xxh3::Sums> sums(pieces.size());
  for (std::size_t i = pieces.size(); i-- > 0;) {
    hash.sum(offsets[i], pieces[i].first(random() % (pieces[i].size() + 1)), sums[i]);  // a piece may grow
    hash.sum(offsets[i], pieces[i], sums[i]);
  }
  for (std::size_t i = 0; i < pieces.size(); ++i) hash.append(pieces[i], sums[i]);
  return hash.hex();
}

// Around every length at which XXH3 becomes another function, and around its stripes and blocks.
TEST(Xxh3, IsThatOfTheLibraryForEveryLengthAndCut) {
  std::vector<std::size_t> lengths;
  for (std::size_t n = 0; n <= 300; ++n) lengths.push_back(n);
  for (const std::size_t around : {512u, 1024u, 1088u, 2048u, 3072u, 10240u, 65536u})
    for (std::size_t n = around - 66; n <= around + 66; ++n) lengths.push_back(n);
  test::for_each_target([&](const std::string& target) {
    for (const std::size_t n : lengths) {
      const auto bytes = random_bytes(n);
      ASSERT_EQ(in_pieces(bytes, n + 1), expected(bytes)) << target << ", " << n << " bytes";
      ASSERT_EQ(in_pieces(bytes, 1500), expected(bytes)) << target << ", " << n << " bytes";
      if (n < 4096) {
        ASSERT_EQ(in_pieces(bytes, 7), expected(bytes)) << target << ", " << n << " bytes";
      }
    }
  });
}

TEST(Xxh3, OfNothingIsThePublishedOne) { EXPECT_EQ(Xxh3(0).hex(), "99aa06d3014798d86001c324468d497f"); }

}  // namespace
}  // namespace nibble::xxh3_test
