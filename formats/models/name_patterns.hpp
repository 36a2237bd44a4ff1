#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "nibble/tensor_list.hpp"

namespace nibble {

/// Patterns (RE2 syntax, for whole names) that match exactly the names for which `chosen` is true, and no other name in
/// the list. Names that differ in numbers between dots only share a pattern:
///
///   model\.layers\.(0|3|17)\.mlp\.down_proj\.weight
///   model\.layers\.\d+\.mlp\.down_proj\.weight         if no such name is left out
///
/// In the order in which the first of each kind comes. Names are valid UTF-8; the patterns are printable ASCII.
[[nodiscard]] std::vector<std::string> name_patterns(const TensorList& tensors, const std::vector<bool>& chosen);

/// A pattern that matches this text and nothing else, in printable ASCII.
[[nodiscard]] std::string exact_pattern(std::string_view text);

}  // namespace nibble
