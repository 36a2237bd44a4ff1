#include "formats/containers/part_list.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "formats/models/names.hpp"

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

// Equal names have equal hashes, so only names with equal hashes are compared.
std::optional<std::pair<std::size_t, std::size_t>> find_duplicate(const PartList& parts) {
  std::string name;
  const auto hash_of = [&](std::size_t part) {
    const PartList::Name pieces = parts.name(part);
    name.assign(pieces.stem).append(pieces.rest);
    return std::hash<std::string_view>()(name);
  };
  std::vector<std::size_t> hashes(parts.size());
  for (std::size_t i = 0; i < parts.size(); ++i) hashes[i] = hash_of(i);
  std::sort(hashes.begin(), hashes.end());
  std::vector<std::size_t> shared;
  for (std::size_t i = 1; i < hashes.size(); ++i)
    if (hashes[i] == hashes[i - 1]) shared.push_back(hashes[i]);
  if (shared.empty()) return std::nullopt;

  NameList candidates;
  std::vector<std::size_t> numbers;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (!std::binary_search(shared.begin(), shared.end(), hash_of(i))) continue;
    candidates.push_back(name);
    numbers.push_back(i);
  }
  const auto twice = NameIndex(candidates).duplicate();
  if (!twice) return std::nullopt;
  return std::pair(numbers[twice->first], numbers[twice->second]);
}

}  // namespace nibble
