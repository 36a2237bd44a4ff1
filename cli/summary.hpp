#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/terminal/json.hpp"
#include "nibble/convert.hpp"

namespace nibble::cli {

/// What is printed both for a plan and for a conversion.
[[nodiscard]] Json summary_json(const Plan& plan, std::span<const Message> warnings);

/// --dry-run: every tensor with its codec and why. In the text, layers that are alike are one line.
[[nodiscard]] Json plan_json(const Plan& plan, const ConversionMemory& memory);
[[nodiscard]] std::string plan_text(const Plan& plan, const ConversionMemory& memory);

/// The result of a conversion besides its report.
struct Conversion {
  const Reader& in;
  std::string out;                    ///< as it was given
  std::optional<std::string> device;  ///< the name of the device that encoded something; the CPU if none did
  double seconds = 0;
  bool computed = false;  ///< weights of `in` are not those of a file
};
[[nodiscard]] Json report_json(const Report& report, const Conversion& conversion);

/// A few lines: the output, its codecs, their error, and how to load it.
[[nodiscard]] std::string report_text(const Report& report, const Conversion& conversion);

}  // namespace nibble::cli
