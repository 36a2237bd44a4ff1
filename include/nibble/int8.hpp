#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "nibble/tensor.hpp"

/// LLM.int8(): 8-bit integers with one absmax per row, that is per output feature.
///
///   weight = code * absmax[row] / 127
///
/// Source: Dettmers et al., "LLM.int8()", 2022, section 2; bytes as bitsandbytes 0.50 on the CPU writes them, which
/// rounds the weights to fp16 first and calls the absmax SCB.
namespace nibble::int8 {

/// 1 / 127, by which bitsandbytes multiplies.
inline constexpr float inverse_127 = 7.874015718698502e-3f;

/// Encodes one row of n weights.
///
///   w = weight rounded to fp16, absmax = max |w|, code = w * ((1 / absmax) * 127) rounded to an integer
///
/// with one rounding per operation, halves to even. A row of zeros has absmax 0 and codes 0. In a row with a NaN,
/// an infinity or a magnitude that fp16 cannot hold (65520 and more), NaN counts as 0, a finite weight of such
/// magnitude as +-65504, and an infinity as the largest magnitude of the others.
///
/// Returns absmax. Every CPU target writes the same bytes. Thread-safe, allocates nothing. Throws Error(usage) if
/// the sizes disagree.
float encode_row(std::span<const float> weights, std::span<std::int8_t> codes);

/// absmax of (a part of) a row as in encode_row(), with infinities left out; `plain` becomes false if it has a NaN,
/// an infinity or a magnitude that fp16 cannot hold. The absmax of a row is the largest of its parts. The weights are
/// bytes of `source`: F64, F32, BF16 or F16.
[[nodiscard]] float row_absmax(DType source, std::span<const std::byte> weights, bool& plain);

/// The codes of (a part of) a row, given the absmax and the `plain` of the whole row.
void encode_row(DType source, std::span<const std::byte> weights, float absmax, bool plain,
                std::span<std::int8_t> codes);

/// Decodes (a part of) a row: (code * absmax) * inverse_127, two roundings. Throws as encode_row().
void decode_row(std::span<const std::int8_t> codes, float absmax, std::span<float> weights);

}  // namespace nibble::int8
