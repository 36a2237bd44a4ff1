#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

/// Double quantization: the absmax values of 4-bit blocks in 8 bits, with a nested absmax per 256 of them.
///
///   absmax = codebook[code] * nested_absmax[block] + nested_offset
///
/// Source: Dettmers et al., "QLoRA", 2023, section 3; the codebook is the dynamic map of Dettmers, "8-Bit
/// Approximations for Parallelism in Deep Learning", 2015. Codes: the rule of bitsandbytes 0.50 on CUDA, which is the
/// nearest value; its CPU rule is a table of 65536 entries that misses the nearest in about 0.1 % of the codes.
namespace nibble::nested {

inline constexpr std::size_t blocksize = 256;  // absmax values per nested absmax
inline constexpr std::uint8_t code_of_zero = 127;

/// The values of the 256 codes, ascending, from -0.993 to 1; codebook[127] is exactly 0.
///
/// For i = 0 ... 6: [0.1, 1] cut into 2^i equal steps, their middles times 10^(i - 6), with both signs; and 0 and 1.
inline constexpr std::array<float, 256> codebook = [] {
  constexpr float powers[7] = {1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1.0f};
  std::array<float, 256> values{};
  std::size_t count = 0;
  for (std::size_t i = 0; i < 7; ++i) {
    // torch.linspace computes in fp32 with a fused multiply-add, from the end that is nearer. A product of two fp32
    // numbers is exact in fp64, where the sum loses nothing that could change its rounding to fp32.
    const std::size_t steps = std::size_t{1} << i;
    const double step = (1.0f - 0.1f) / static_cast<float>(steps);
    const auto point = [&](std::size_t k) {
      return k < (steps + 1) / 2 ? static_cast<float>(0.1f + step * static_cast<double>(k))
                                 : static_cast<float>(1.0 - step * static_cast<double>(steps - k));
    };
    for (std::size_t k = 0; k < steps; ++k) {
      const float value = (point(k) + point(k + 1)) / 2 * powers[i];
      values[count++] = value;
      values[count++] = -value;
    }
  }
  values[count++] = 0.0f;
  values[count++] = 1.0f;
  std::sort(values.begin(), values.end());
  return values;
}();
static_assert(codebook[code_of_zero] == 0.0f);

/// The number of absmax values that are summed as a group: groups can be summed in parallel, and the result still does
/// not depend on the number of threads.
inline constexpr std::size_t group = 16384;
inline constexpr std::size_t partial_sums = 64;

/// The float64 sum of up to `group` absmax values: value i goes to partial sum i mod 64, in order; then the upper half
/// of the partial sums is added to the lower, s[i] + s[i + 32], and so on with 16, 8, 4, 2 and 1. Vectors of any width
/// and warps of a GPU can do that.
[[nodiscard]] double group_sum(std::span<const float> absmax) noexcept;

/// The mean of the absmax values in weight units: the sums of their groups, added in order, divided by their number
/// in float64, rounded to fp32. 0 if there is none.
[[nodiscard]] float offset(std::span<const float> absmax) noexcept;

/// Encodes n finite absmax values; the last block may be short.
///
///   d = absmax - offset, nested_absmax = max |d|, v = d * (1 / nested_absmax), code = nearest of the codebook
///
/// with one rounding per operation; a tie goes to the even code. If nested_absmax is 0, the code is 127, so that the
/// values decode to exactly the offset.
///
///   codes          n
///   nested_absmax  ceil(n / 256)
///
/// Thread-safe, allocates nothing. Throws Error(usage) if a size disagrees.
void encode(std::span<const float> absmax, float offset, std::span<std::uint8_t> codes, std::span<float> nested_absmax);

/// Decodes with any codebook of 256 values: two roundings, no fused multiply-add. Errors as for encode().
void decode(std::span<const std::uint8_t> codes, std::span<const float> nested_absmax,
            std::span<const float, 256> values, float offset, std::span<float> absmax);

/// Decodes absmax values [first, first + absmax.size()) of an array whose codes and nested absmax are given whole;
/// `first` need not begin a block.
void decode_slice(std::uint64_t first, std::span<const std::uint8_t> codes, std::span<const float> nested_absmax,
                  std::span<const float, 256> values, float offset, std::span<float> absmax);

/// Whether all values that encode() gave decode to finite ones: near the limit of fp32, rounding may move one beyond
/// it.
[[nodiscard]] bool decodes_to_finite(std::span<const std::uint8_t> codes, std::span<const float> nested_absmax,
                                     float offset);

}  // namespace nibble::nested
