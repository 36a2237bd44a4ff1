#include "quant/jobs/measure/counts.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

namespace nibble {
namespace {

void add_errors(Counts& to, int exponent, std::uint64_t count) {
  const auto at = std::lower_bound(to.errors.begin(), to.errors.end(), std::pair(exponent, std::uint64_t{0}));
  if (at != to.errors.end() && at->first == exponent)
    at->second += count;
  else
    to.errors.insert(at, {exponent, count});
}

}  // namespace

void add(Counts& to, const Counts& from) {
  to.codes.resize(std::max(to.codes.size(), from.codes.size()));
  for (std::size_t i = 0; i < from.codes.size(); ++i) to.codes[i] += from.codes[i];
  for (const auto& [exponent, count] : from.errors) add_errors(to, exponent, count);
  to.exact += from.exact;
}

void count_errors(std::span<const float> reference, std::span<const float> test, Counts& counts) {
  std::array<std::uint32_t, 256> found{};  // by exponent, which is how fp32 stores it
  for (std::size_t i = 0; i < reference.size(); ++i)
    ++found[std::bit_cast<std::uint32_t>(test[i] - reference[i]) << 1 >> 24];
  counts.exact += found[0];  // including subnormal ones, which are negligible
  for (std::size_t e = 1; e < 255; ++e)
    if (found[e] != 0) add_errors(counts, static_cast<int>(e) - 127, found[e]);
}

bool has_four_bit_codes(const Codec& codec) {
  constexpr std::uint64_t weights = 8;
  return !codec.codebook().empty() && codec.code_bytes({{}, DType::f32, {1, weights}}, weights) == weights / 2;
}

void count_codes(std::span<const std::byte> packed, std::size_t weights, Counts& counts) {
  std::array<std::uint32_t, 256> pairs{};
  for (const std::byte pair : packed) ++pairs[static_cast<std::uint8_t>(pair)];
  counts.codes.resize(16);
  for (std::size_t pair = 0; pair < pairs.size(); ++pair) {
    counts.codes[pair >> 4] += pairs[pair];
    counts.codes[pair & 15] += pairs[pair];
  }
  if (weights % 2 != 0) --counts.codes[static_cast<std::uint8_t>(packed.back()) & 15];  // padding
}

double Counts::entropy() const {
  std::uint64_t total = 0;
  for (const std::uint64_t count : codes) total += count;
  if (total == 0) return std::numeric_limits<double>::quiet_NaN();
  double bits = 0;
  for (const std::uint64_t count : codes) {
    if (count == 0) continue;
    const double p = static_cast<double>(count) / static_cast<double>(total);
    bits -= p * std::log2(p);
  }
  return bits;
}

}  // namespace nibble
