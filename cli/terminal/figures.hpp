#pragma once

#include <cstdint>
#include <string>
#include <string_view>

/// Figures as people read them; "-" where there is none (NaN).
namespace nibble::cli {

/// Ratios are printed up to here. Two fp32 numbers of one size that differ at all differ by -150 dB or more; a larger
/// ratio says how rare or how small the weights are that differ, and not how well the others are stored.
inline constexpr double max_decibels = 300;

/// "20.47"; "exact" for an infinite ratio, ">300" and "<-300" beyond what is printed.
[[nodiscard]] std::string decibels(double value, int digits = 2);
[[nodiscard]] std::string with_unit(double decibels);                           ///< "20.47 dB", or "exact"
[[nodiscard]] std::string scientific(double value);                             ///< "5.73e-03"
[[nodiscard]] std::string percent(double share);                                ///< "9.47 %"
[[nodiscard]] std::string similarity(double value);                             ///< "0.995513"
[[nodiscard]] std::string counted(std::uint64_t count, std::string_view noun);  ///< "1 tensor", "2 tensors"

}  // namespace nibble::cli
