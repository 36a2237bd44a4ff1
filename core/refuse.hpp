#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "nibble/error.hpp"

namespace nibble {

/// Throws Error(bad_input) about what `label` names.
template <class... Args>
[[noreturn]] void refuse(std::string_view label, fmt::format_string<Args...> text, Args&&... args) {
  throw Error(Errc::bad_input, label, fmt::format(text, std::forward<Args>(args)...));
}

}  // namespace nibble
