#include "nibble/nested.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

#include "nibble/error.hpp"

namespace nibble::nested {
namespace {

// torch.linspace computes in fp32 with a fused multiply-add, from the end that is nearer. A product of two fp32
// numbers is exact in fp64, where the sum loses nothing that could change its rounding to fp32.
constexpr std::array<float, 256> make_codebook() {
  constexpr float powers[7] = {1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1.0f};
  std::array<float, 256> values{};
  std::size_t count = 0;
  for (std::size_t i = 0; i < 7; ++i) {
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
}

constexpr std::array<float, 255> make_midpoints(const std::array<float, 256>& values) {
  std::array<float, 255> midpoints{};
  for (std::size_t i = 0; i < 255; ++i) midpoints[i] = 0.5f * (values[i] + values[i + 1]);
  return midpoints;
}

constexpr std::array<float, 256> codebook_values = make_codebook();
static_assert(codebook_values[code_of_zero] == 0.0f);
constexpr std::array<float, 255> midpoints = make_midpoints(codebook_values);

// The number of midpoints below v, one step up where v is the midpoint above an odd code.
std::uint8_t nearest(float v) noexcept {
  std::size_t below = 0;
  for (std::size_t step = 128; step > 0; step /= 2)  // no branch: eight steps for every value
    below += midpoints[below + step - 1] < v ? step : 0;
  if (below % 2 == 1 && below < midpoints.size() && v == midpoints[below]) ++below;
  return static_cast<std::uint8_t>(below);
}

void check_sizes(std::size_t absmax, std::size_t codes, std::size_t nested_absmax) {
  if (codes != absmax || nested_absmax != absmax / blocksize + (absmax % blocksize != 0))
    throw Error(Errc::usage, std::to_string(absmax) + " absmax values do not fit " + std::to_string(codes) +
                                 " codes and " + std::to_string(nested_absmax) + " nested absmax values");
}

}  // namespace

const std::array<float, 256> codebook = codebook_values;

float offset(std::span<const float> absmax) noexcept {
  double sum = 0;
  for (const float value : absmax) sum += value;
  return absmax.empty() ? 0.0f : static_cast<float>(sum / static_cast<double>(absmax.size()));
}

void encode(std::span<const float> absmax, float offset, std::span<std::uint8_t> codes,
            std::span<float> nested_absmax) {
  check_sizes(absmax.size(), codes.size(), nested_absmax.size());
  for (std::size_t first = 0; first < absmax.size(); first += blocksize) {
    const auto block = absmax.subspan(first, std::min(blocksize, absmax.size() - first));
    float largest = 0;
    for (const float value : block) largest = std::max(largest, std::abs(value - offset));
    nested_absmax[first / blocksize] = largest;
    const float inverse = 1.0f / largest;
    for (std::size_t i = 0; i < block.size(); ++i) {
      const float d = block[i] - offset;
      codes[first + i] = d == 0.0f ? code_of_zero : nearest(d * inverse);  // 0 times an infinite inverse is NaN
    }
  }
}

void decode(std::span<const std::uint8_t> codes, std::span<const float> nested_absmax,
            std::span<const float, 256> values, float offset, std::span<float> absmax) {
  check_sizes(absmax.size(), codes.size(), nested_absmax.size());
  for (std::size_t i = 0; i < codes.size(); ++i) absmax[i] = values[codes[i]] * nested_absmax[i / blocksize] + offset;
}

}  // namespace nibble::nested
