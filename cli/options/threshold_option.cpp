#include "cli/options/threshold_option.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>

#include "nibble/error.hpp"
#include "quant/jobs/plan/user_pattern.hpp"

namespace nibble::cli {
namespace {

std::optional<double> finite_number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

// Limits that every tensor breaks, or none.
std::string_view impossible(Threshold::Figure figure, double limit) {
  if (figure == Threshold::Figure::max_rmse && limit < 0) return "an error is never below 0";
  if (figure == Threshold::Figure::min_cosine && std::abs(limit) > 1) return "a cosine lies between -1 and 1";
  return {};
}

}  // namespace

Threshold parse_threshold(Threshold::Figure figure, const std::string& option, const std::string& text) {
  const std::size_t equals = text.rfind('=');
  const bool has_pattern = equals != std::string::npos;
  const auto limit = finite_number(std::string_view(text).substr(has_pattern ? equals + 1 : 0));
  if (!limit)
    throw Error(Errc::usage,
                fmt::format("{} '{}': neither a number nor of the form RE=NUMBER", option, printable(text)));
  if (equals == 0) throw Error(Errc::usage, fmt::format("{} '{}': the pattern is empty", option, printable(text)));
  if (const std::string_view why = impossible(figure, *limit); !why.empty())
    throw Error(Errc::usage, fmt::format("{} '{}': {}", option, printable(text), why));
  Threshold threshold{figure, *limit, has_pattern ? text.substr(0, equals) : ""};
  (void)UserPattern(option, threshold.pattern);  // say it now, because measuring takes long
  return threshold;
}

}  // namespace nibble::cli
