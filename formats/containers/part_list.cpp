#include "formats/containers/part_list.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace nibble {

bool is_before(const PartList::Name& a, const PartList::Name& b) noexcept {
  std::string_view left = a.stem, left_rest = a.rest;
  std::string_view right = b.stem, right_rest = b.rest;
  while (true) {
    if (left.empty()) left = std::exchange(left_rest, {});
    if (right.empty()) right = std::exchange(right_rest, {});
    const std::size_t both = std::min(left.size(), right.size());
    if (both == 0) return left.size() < right.size();
    if (const int order = std::memcmp(left.data(), right.data(), both); order != 0) return order < 0;
    left.remove_prefix(both);
    right.remove_prefix(both);
  }
}

}  // namespace nibble
