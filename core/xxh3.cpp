#include "core/xxh3.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cassert>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/xxh3.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#ifndef NIBBLE_QUANT_XXH3_CONSTANTS
#define NIBBLE_QUANT_XXH3_CONSTANTS
namespace nibble::xxh3 {

inline constexpr std::size_t lanes = 8;  // of 64 bits: a stripe
inline constexpr std::size_t stripe_bytes = 64;
inline constexpr std::size_t stripes = 16;  // in a block

// The secret of seed 0, 192 bytes. Stripe i of a block starts reading it at byte 8 * i.
inline constexpr std::uint64_t secret[24] = {
    0xBE4BA423396CFEB8, 0x1CAD21F72C81017C, 0xDB979083E96DD4DE, 0x1F67B3B7A4A44072, 0x78E5C0CC4EE679CB,
    0x2172FFCC7DD05A82, 0x8E2443F7744608B8, 0x4C263A81E69035E0, 0xCB00C391BB52283C, 0xA32E531B8B65D088,
    0x4EF90DA297486471, 0xD8ACDEA946EF1938, 0x3F349CE33F76FAA8, 0x1D4F0BC7C7BBDCF9, 0x3159B4CD4BE0518A,
    0x647378D9C97E9FC8, 0xC3EBD33483ACC5EA, 0xEB6313FAFFA081C5, 0x49DAF0B751DD0D17, 0x9E68D429265516D3,
    0xFCA1477D58BE162B, 0xCE31D07AD1B8F88F, 0x280416958F3ACB45, 0x7E404BBBCAFBD7AF,
};

inline constexpr std::uint64_t prime32_1 = 0x9E3779B1;

}  // namespace nibble::xxh3
#endif

HWY_BEFORE_NAMESPACE();
namespace nibble::xxh3::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Adds to sums[8] what n stripes contribute: lane i the product of the halves of (data ^ secret), and the data of its
// neighbour.
void add_stripes(const std::byte* HWY_RESTRICT data, std::size_t n, const std::byte* HWY_RESTRICT key,
                 std::uint64_t* HWY_RESTRICT sums) {
#if HWY_TARGET != HWY_SCALAR
  const hn::CappedTag<std::uint64_t, lanes> d;
  const hn::Repartition<std::uint32_t, decltype(d)> d32;
  const hn::Repartition<std::uint8_t, decltype(d)> d8;
  const auto load = [&](const std::byte* from)
                        HWY_ATTR { return hn::BitCast(d, hn::LoadU(d8, reinterpret_cast<const std::uint8_t*>(from))); };
  constexpr std::size_t vectors = lanes / hn::MaxLanes(d);
  for (std::size_t v = 0; v < vectors; ++v) {
    auto sum = hn::LoadU(d, sums + v * hn::Lanes(d));
    const std::byte* const first = data + v * hn::Lanes(d) * 8;
    for (std::size_t i = 0; i < n; ++i) {
      const auto stripe = load(first + i * stripe_bytes);
      const auto keyed = hn::BitCast(d32, hn::Xor(stripe, load(key + 8 * (i + v * hn::Lanes(d)))));
      const auto upper = hn::BitCast(d32, hn::ShiftRight<32>(hn::BitCast(d, keyed)));
      const auto neighbour = hn::BitCast(d, hn::Shuffle1032(hn::BitCast(d32, stripe)));
      sum = hn::Add(sum, hn::Add(hn::MulEven(keyed, upper), neighbour));
    }
    hn::StoreU(sum, d, sums + v * hn::Lanes(d));
  }
#else
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      std::uint64_t value = 0, word = 0;
      std::memcpy(&value, data + i * stripe_bytes + 8 * lane, sizeof value);
      std::memcpy(&word, key + 8 * (i + lane), sizeof word);
      const std::uint64_t keyed = value ^ word;
      sums[lane ^ 1] += value;
      sums[lane] += (keyed & 0xFFFFFFFFu) * (keyed >> 32);
    }
#endif
}

void sum_blocks(const std::byte* HWY_RESTRICT data, std::size_t blocks, std::uint64_t* HWY_RESTRICT sums) {
  std::fill_n(sums, blocks * lanes, 0);
  for (std::size_t b = 0; b < blocks; ++b)
    add_stripes(data + b * stripes * stripe_bytes, stripes, reinterpret_cast<const std::byte*>(secret),
                sums + b * lanes);
}

// Adds the sums of each block to the state and scrambles it.
void add_blocks(const std::uint64_t* HWY_RESTRICT sums, std::size_t blocks, std::uint64_t* HWY_RESTRICT state) {
  const std::uint64_t* const words = secret + 16;
#if HWY_TARGET != HWY_SCALAR
  const hn::CappedTag<std::uint64_t, lanes> d;
  const hn::Repartition<std::uint32_t, decltype(d)> d32;
  const auto prime = hn::BitCast(d32, hn::Set(d, prime32_1));
  for (std::size_t v = 0; v < lanes; v += hn::Lanes(d)) {
    const auto word = hn::LoadU(d, words + v);
    auto lane = hn::LoadU(d, state + v);
    for (std::size_t b = 0; b < blocks; ++b) {
      lane = hn::Add(lane, hn::LoadU(d, sums + b * lanes + v));
      lane = hn::Xor(hn::Xor(lane, word), hn::ShiftRight<47>(lane));
      const auto upper = hn::MulEven(hn::BitCast(d32, hn::ShiftRight<32>(lane)), prime);
      lane = hn::Add(hn::MulEven(hn::BitCast(d32, lane), prime), hn::ShiftLeft<32>(upper));
    }
    hn::StoreU(lane, d, state + v);
  }
#else
  for (std::size_t i = 0; i < blocks * lanes; ++i) {
    std::uint64_t lane = state[i % lanes] + sums[i];
    lane ^= lane >> 47;
    state[i % lanes] = (lane ^ words[i % lanes]) * prime32_1;
  }
#endif
}

}  // namespace nibble::xxh3::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble {
namespace xxh3 {

HWY_EXPORT(add_stripes);
HWY_EXPORT(sum_blocks);
HWY_EXPORT(add_blocks);

namespace {

constexpr std::uint64_t prime32_2 = 0x85EBCA77, prime32_3 = 0xC2B2AE3D;
constexpr std::uint64_t prime64_1 = 0x9E3779B185EBCA87, prime64_2 = 0xC2B2AE3D27D4EB4F, prime64_3 = 0x165667B19E3779F9,
                        prime64_4 = 0x85EBCA77C2B2AE63, prime64_5 = 0x27D4EB2F165667C5;

constexpr std::uint64_t short_input = 240;  // bytes: up to there XXH3 is another function

const std::byte* key(std::size_t byte) { return reinterpret_cast<const std::byte*>(secret) + byte; }

std::uint64_t word_at(std::size_t byte) {
  std::uint64_t word = 0;
  std::memcpy(&word, key(byte), sizeof word);
  return word;
}

// The eight lanes as one number: products of pairs, 128 bits folded to 64.
std::uint64_t merge(const std::array<std::uint64_t, lanes>& state, std::size_t secret_byte, std::uint64_t start) {
  std::uint64_t result = start;
  for (std::size_t i = 0; i < lanes; i += 2) {
    std::uint64_t upper = 0;
    const std::uint64_t lower =
        hwy::Mul128(state[i] ^ word_at(secret_byte + 8 * i), state[i + 1] ^ word_at(secret_byte + 8 * i + 8), &upper);
    result += lower ^ upper;
  }
  result ^= result >> 37;
  result *= 0x165667919E3779F9;
  return result ^ result >> 32;
}

}  // namespace
}  // namespace xxh3

using xxh3::lanes;
using xxh3::stripe_bytes;

Xxh3::Xxh3(std::uint64_t total_bytes)
    : total_(total_bytes),
      blocks_(total_bytes <= xxh3::short_input ? 0 : (total_bytes - 1) / block_bytes),
      state_{xxh3::prime32_3, xxh3::prime64_1, xxh3::prime64_2, xxh3::prime64_3,
             xxh3::prime64_4, xxh3::prime32_2, xxh3::prime64_5, xxh3::prime32_1} {}

Xxh3::Range Xxh3::whole_blocks(std::uint64_t offset, std::size_t bytes) const {
  const std::uint64_t first = (offset + block_bytes - 1) / block_bytes;
  const std::uint64_t end = std::min(blocks_, (offset + bytes) / block_bytes);
  if (end <= first) return {0, 0};
  return {static_cast<std::size_t>(first * block_bytes - offset), static_cast<std::size_t>(end * block_bytes - offset)};
}

void Xxh3::sum(std::uint64_t offset, std::span<const std::byte> bytes, Sums& sums) const {
  const Range whole = whole_blocks(offset, bytes.size());
  const std::size_t done = sums.size() / lanes, blocks = (whole.end - whole.begin) / block_bytes;
  sums.resize(blocks * lanes);
  HWY_DYNAMIC_DISPATCH(xxh3::sum_blocks)
  (bytes.data() + whole.begin + done * block_bytes, blocks - done, sums.data() + done * lanes);
}

void Xxh3::append(std::span<const std::byte> bytes, const Sums& sums) {
  const Range whole = whole_blocks(appended_, bytes.size());
  assert(sums.size() == (whole.end - whole.begin) / block_bytes * lanes);
  append_edge(bytes.first(whole.begin));
  add_blocks(sums);
  append_edge(bytes.subspan(whole.end));
  appended_ += bytes.size();

  const std::size_t kept = std::min(bytes.size(), last_.size());
  std::memmove(last_.data(), last_.data() + kept, last_.size() - kept);
  if (kept > 0) std::memcpy(last_.data() + last_.size() - kept, bytes.data() + bytes.size() - kept, kept);
}

void Xxh3::append(std::span<const std::byte> bytes) {
  Sums sums;
  sum(appended_, bytes, sums);
  append(bytes, sums);
}

void Xxh3::append_edge(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::size_t count = std::min(bytes.size(), block_bytes - edge_bytes_);
    std::memcpy(edge_.data() + edge_bytes_, bytes.data(), count);
    bytes = bytes.subspan(count);
    edge_bytes_ += count;
    if (edge_bytes_ < block_bytes || blocks_done_ == blocks_) return;  // the last block stays, be it full
    std::array<std::uint64_t, lanes> sums;
    HWY_DYNAMIC_DISPATCH(xxh3::sum_blocks)(edge_.data(), 1, sums.data());
    add_blocks(sums);
    edge_bytes_ = 0;
  }
}

void Xxh3::add_blocks(std::span<const std::uint64_t> sums) {
  HWY_DYNAMIC_DISPATCH(xxh3::add_blocks)(sums.data(), sums.size() / lanes, state_.data());
  blocks_done_ += sums.size() / lanes;
}

std::string Xxh3::hex() const {
  assert(appended_ == total_);
  if (total_ <= xxh3::short_input) {
    const XXH128_hash_t hash = XXH3_128bits(edge_.data(), edge_bytes_);
    return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
  }
  auto state = state_;
  const auto add = HWY_DYNAMIC_DISPATCH(xxh3::add_stripes);
  add(edge_.data(), (edge_bytes_ - 1) / stripe_bytes, xxh3::key(0), state.data());
  add(last_.data(), 1, xxh3::key(192 - stripe_bytes - 7), state.data());
  const std::uint64_t low = xxh3::merge(state, 11, total_ * xxh3::prime64_1);
  const std::uint64_t high = xxh3::merge(state, 192 - stripe_bytes - 11, ~(total_ * xxh3::prime64_2));
  return fmt::format("{:016x}{:016x}", high, low);
}

}  // namespace nibble
#endif
