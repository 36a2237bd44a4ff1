#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

/// Sizes as people read them.
namespace nibble {

struct SizeUnit {
  std::string_view name;
  double bytes;
};
inline constexpr std::array<SizeUnit, 4> decimal_units{{{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}}};
inline constexpr std::array<SizeUnit, 4> binary_units{
    {{"TiB", 0x1p40}, {"GiB", 0x1p30}, {"MiB", 0x1p20}, {"KiB", 0x1p10}}};

/// "13.48 GB (12.55 GiB)"
[[nodiscard]] std::string size_both(std::uint64_t bytes);

/// "13.48 GB"
[[nodiscard]] std::string size_short(std::uint64_t bytes);

/// Two different sizes as `text` prints them, or in bytes if `text` would print both alike.
[[nodiscard]] std::pair<std::string, std::string> told_apart(std::uint64_t a, std::uint64_t b,
                                                             std::string (*text)(std::uint64_t));

}  // namespace nibble
