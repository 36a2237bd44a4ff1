#include "cli/terminal/figures.hpp"

#include <fmt/format.h>

#include <cmath>

namespace nibble::cli {

namespace {

// A value that rounds to 0 has no sign: "-0.00" would make a reader look for a difference.
std::string without_sign_of_zero(std::string text) {
  const std::string_view digits = std::string_view(text).substr(0, text.find('e'));
  if (text.starts_with('-') && digits.find_first_of("123456789") == std::string_view::npos) text.erase(0, 1);
  return text;
}

}  // namespace

std::string decibels(double value, int digits) {
  if (std::isnan(value)) return "-";
  if (value > max_decibels) return std::isinf(value) ? "exact" : fmt::format(">{:.0f}", max_decibels);
  if (value < -max_decibels) return fmt::format("<{:.0f}", -max_decibels);
  return without_sign_of_zero(fmt::format("{:.{}f}", value, digits));
}

std::string with_unit(double value) {
  const std::string text = decibels(value);
  return text == "exact" || text == "-" ? text : text + " dB";
}

std::string scientific(double value) {
  return std::isnan(value) ? "-" : without_sign_of_zero(fmt::format("{:.2e}", value));
}

std::string percent(double share) {
  return std::isnan(share) ? "-" : without_sign_of_zero(fmt::format("{:.2f} %", 100 * share));
}

std::string similarity(double value) {
  return std::isnan(value) ? "-" : without_sign_of_zero(fmt::format("{:.6f}", value));
}

std::string counted(std::uint64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

}  // namespace nibble::cli
