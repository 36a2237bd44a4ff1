#include "core/text/size_text.hpp"

#include <fmt/format.h>

namespace nibble {
namespace {

std::string in_bytes(std::uint64_t bytes) { return fmt::format("{} bytes", bytes); }

std::string in_units(std::uint64_t bytes, const std::array<SizeUnit, 4>& units) {
  constexpr double rounded_up = 1 - 0.5e-5;  // two decimals of a thousandth of it are 1000.00
  const auto value = static_cast<double>(bytes);
  for (const SizeUnit& unit : units)
    if (value >= rounded_up * unit.bytes && bytes >= 1000)
      return fmt::format("{:.2f} {}", value / unit.bytes, unit.name);
  return in_bytes(bytes);
}

}  // namespace

std::string size_short(std::uint64_t bytes) { return in_units(bytes, decimal_units); }

std::string size_both(std::uint64_t bytes) {
  return bytes < 1000 ? size_short(bytes) : fmt::format("{} ({})", size_short(bytes), in_units(bytes, binary_units));
}

std::pair<std::string, std::string> told_apart(std::uint64_t a, std::uint64_t b, std::string (*text)(std::uint64_t)) {
  std::pair texts{text(a), text(b)};
  return texts.first == texts.second ? std::pair{in_bytes(a), in_bytes(b)} : texts;
}

}  // namespace nibble
