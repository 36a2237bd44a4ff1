#pragma once

#include <cstdint>

#include "nibble/measure.hpp"

/// Whether the error of a tensor is what its codec causes in normally distributed weights.
namespace nibble::cli {

/// How far below Codec::normal_sqnr_db() the SQNR of a tensor may be and count as expected. Weights have heavier tails
/// than normal ones; 3 dB is twice the squared error.
inline constexpr double expected_margin_db = 3;

enum class Judgement : std::uint8_t {  // in the order of severity
  unknown,                             ///< no expected value is known
  expected,                            ///< within the margin, better, or exact
  worse,                               ///< the SQNR is below that
  broken,  ///< NaN or infinities where the reference has numbers, or errors in weights that are all 0
};
[[nodiscard]] Judgement judge(const MeasuredWeights& tensor, const MeasuredError& error);

/// Whether a tensor has weights that were numbers and no longer are.
[[nodiscard]] bool is_broken(const MeasuredWeights& tensor, const MeasuredError& error);

}  // namespace nibble::cli
