#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/json.hpp"
#include "nibble/convert.hpp"

namespace nibble::cli {

/// What both a plan and a conversion say of themselves.
[[nodiscard]] Json summary_json(const Plan& plan, std::span<const Message> warnings);

/// --dry-run: every tensor with its codec and why. In the text, layers that are alike are one line.
[[nodiscard]] Json plan_json(const Plan& plan, const MemoryPlan& memory);
[[nodiscard]] std::string plan_text(const Plan& plan, const MemoryPlan& memory);

/// What came of a conversion besides its report.
struct Conversion {
  const Reader& in;
  std::string out;                    ///< as it was given
  std::optional<std::string> device;  ///< the name of one that has encoded something; the CPU if there is none
  double seconds = 0;
};
[[nodiscard]] Json report_json(const Report& report, const Conversion& conversion);

/// A few lines: what was made, of what codecs, what that cost, and how it is loaded.
[[nodiscard]] std::string report_text(const Report& report, const Conversion& conversion);

}  // namespace nibble::cli
