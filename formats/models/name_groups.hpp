#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace nibble {

/// Groups names that differ only in the numbers between their dots, if no combination is missing, into one text for
/// people.
struct NameGroup {
  std::string text;       ///< `model.layers.{0..31}.mlp.up_proj.weight`, `h.{0..3,7}.w`; one name as it is
  std::size_t first = 0;  ///< the first of the names in the list
  std::size_t count = 0;
};

/// Every name is in exactly one group; groups come in the order of their first names. Names in the list are unique.
[[nodiscard]] std::vector<NameGroup> name_groups(const std::vector<std::string>& names);

}  // namespace nibble
