#pragma once

#include <cstdint>
#include <string>
#include <string_view>

/// Figures as people read them; "-" where there is none (NaN).
namespace nibble::cli {

[[nodiscard]] std::string decibels(double value);      ///< "20.47", or "exact" for an infinite ratio
[[nodiscard]] std::string with_unit(double decibels);  ///< "20.47 dB", or "exact"
[[nodiscard]] std::string scientific(double value);    ///< "5.73e-03"
[[nodiscard]] std::string percent(double share);       ///< "9.47 %"
[[nodiscard]] std::string similarity(double value);    ///< "0.995513"
[[nodiscard]] std::string counted(std::uint64_t count, std::string_view noun);  ///< "1 tensor", "2 tensors"

}  // namespace nibble::cli
