#pragma once

#include <string>

#include "nibble/thresholds.hpp"

namespace nibble::cli {

/// "0.01", or "RE=0.01". Throws Error(usage) naming `option` if there is no number, if no error or cosine can have that
/// value, or if the pattern is invalid.
[[nodiscard]] Threshold parse_threshold(Threshold::Figure figure, const std::string& option, const std::string& text);

}  // namespace nibble::cli
