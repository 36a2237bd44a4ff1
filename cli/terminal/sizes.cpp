#include "cli/terminal/sizes.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>

#include "nibble/error.hpp"

namespace nibble::cli {
namespace {

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (lower(a[i]) != lower(b[i])) return false;
  return true;
}

}  // namespace

std::uint64_t parse_size(std::string_view option, std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  double scale = unit.empty() || equal_ignoring_case(unit, "B") ? 1 : 0;
  for (const auto& units : {decimal_units, binary_units})
    for (const SizeUnit& known : units)
      if (equal_ignoring_case(unit, known.name) || equal_ignoring_case(unit, known.name.substr(0, 1)))
        if (scale == 0) scale = known.bytes;
  const double bytes = number * scale;
  if (error != std::errc() || scale == 0 || !(bytes >= 1) || bytes >= 0x1p63)
    throw Error(Errc::usage, fmt::format("{} '{}': not a size such as 5GB, 300MB or 4GiB", option, printable(text)));
  return static_cast<std::uint64_t>(std::llround(bytes));
}

}  // namespace nibble::cli
