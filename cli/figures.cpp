#include "cli/figures.hpp"

#include <fmt/format.h>

#include <cmath>

namespace nibble::cli {

std::string decibels(double value) {
  if (std::isnan(value)) return "-";
  return std::isinf(value) ? "exact" : fmt::format("{:.2f}", value);
}

std::string with_unit(double value) {
  const std::string text = decibels(value);
  return text == "exact" || text == "-" ? text : text + " dB";
}

std::string scientific(double value) { return std::isnan(value) ? "-" : fmt::format("{:.2e}", value); }

std::string percent(double share) { return std::isnan(share) ? "-" : fmt::format("{:.2f} %", 100 * share); }

std::string similarity(double value) { return std::isnan(value) ? "-" : fmt::format("{:.6f}", value); }

std::string counted(std::uint64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

}  // namespace nibble::cli
