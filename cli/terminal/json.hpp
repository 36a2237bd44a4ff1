#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace nibble::cli {

using Json = nlohmann::ordered_json;

/// A number, or null where JSON has none: infinities and NaN.
[[nodiscard]] Json number(double value);

/// The text on one line. Names and paths need not be UTF-8: bytes that are not become U+FFFD.
[[nodiscard]] std::string dump(const Json& json);

/// The same over several lines, indented by one space.
[[nodiscard]] std::string dump_lines(const Json& json);

}  // namespace nibble::cli
