#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "quant/codecs/four_bit/four_bit.hpp"
#include "quant/quantizers/compensation/input_factor.hpp"
#include "quant/quantizers/compensation/nested_range.hpp"
#include "quant/quantizers/compensation/row_group.hpp"

/// The codes of rows [rows, k] of a weight, with the rounding error of each column made up for by the columns that
/// InputFactor::order() has after it. Rows do not depend on each other, so the bytes depend neither on how a weight is
/// cut into rows nor on threads, and not on the CPU target. Throws Error(bad_input), which names the row of the
/// whole weight, if a weight is not finite or the corrections leave the range of fp32. Thread-safe. A call takes
/// compensation_bytes() of memory.
namespace nibble {

/// For int8, `blocksize` is that of a tile of the factor, 64, or less.
[[nodiscard]] std::uint64_t compensation_bytes(std::uint64_t k, std::uint64_t blocksize);

/// NF4 and FP4. When the first column of a block is reached, its absmax is chosen for what its weights are best by
/// then, if they were not rounded: their largest magnitude, or what a search weighted by InputFactor::importance()
/// finds. With double quantization the code of the absmax is chosen at once, too: of the two around it, the one that
/// leaves the weights less error.
class FourBitCompensation {
 public:
  /// Both have to outlive it. The factor has the codec's blocksize.
  FourBitCompensation(const FourBitCodec& codec, const InputFactor& factor);

  /// What encode() writes. With double quantization, `absmax` is as it will be read back.
  struct Blocks {
    std::span<std::uint8_t> packed;
    std::span<float> absmax;
    std::span<std::uint8_t> absmax_codes;  ///< empty without double quantization
  };

  /// Encodes rows from `first_row` on; `range`, which double quantization needs, is that of the whole weight.
  void encode(std::uint64_t first_row, std::span<const float> weights, const NestedRange* range,
              const Blocks& to) const;

 private:
  const FourBitCodec& codec_;
  const InputFactor& factor_;
  row_group::FourBitGrid grid_;
  std::span<const float> ratios_;
};

/// int8 rows from `first_row` on with the absmax of each, which is chosen beforehand; the factor may have any
/// blocksize.
void compensate_int8(const InputFactor& factor, std::uint64_t first_row, std::span<const float> weights,
                     std::span<const float> absmax, std::span<std::int8_t> codes);

}  // namespace nibble
