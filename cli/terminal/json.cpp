#include "cli/terminal/json.hpp"

#include <cmath>

namespace nibble::cli {

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(); }

std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string dump_lines(const Json& json) { return json.dump(1, ' ', false, Json::error_handler_t::replace); }

}  // namespace nibble::cli
