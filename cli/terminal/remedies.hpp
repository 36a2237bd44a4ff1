#pragma once

#include <string>
#include <string_view>

#include "nibble/remedy.hpp"

namespace nibble::cli {

/// What the library says, and the options that help: "out: exists; pass --overwrite to replace it".
[[nodiscard]] std::string with_options(std::string_view text, const Remedy& remedy);

}  // namespace nibble::cli
