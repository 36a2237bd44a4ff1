#include "formats/names.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <tuple>
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

NameIndex::NameIndex(const std::vector<std::string_view>& names) {
  entries_.reserve(names.size());
  for (std::size_t i = 0; i < names.size(); ++i)
    entries_.push_back({std::hash<std::string_view>()(names[i]), names[i], i});
  sort();
}

NameIndex::NameIndex(const TensorList& tensors) {
  entries_.reserve(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i)
    entries_.push_back({std::hash<std::string_view>()(tensors.name(i)), tensors.name(i), i});
  sort();
}

void NameIndex::sort() {
  std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
    if (a.hash != b.hash) return a.hash < b.hash;
    return std::tie(a.name, a.position) < std::tie(b.name, b.position);
  });
}

std::optional<std::size_t> NameIndex::find(std::string_view name) const {
  const std::size_t hash = std::hash<std::string_view>()(name);
  const auto entry = std::lower_bound(entries_.begin(), entries_.end(), hash, [&](const Entry& a, std::size_t h) {
    return a.hash != h ? a.hash < h : a.name < name;
  });
  if (entry == entries_.end() || entry->hash != hash || entry->name != name) return std::nullopt;
  return entry->position;
}

std::optional<std::pair<std::size_t, std::size_t>> NameIndex::duplicate() const {
  std::optional<std::pair<std::size_t, std::size_t>> first;
  for (std::size_t i = 1; i < entries_.size(); ++i) {
    const Entry &a = entries_[i - 1], &b = entries_[i];
    if (a.hash == b.hash && a.name == b.name && (!first || b.position < first->second))
      first = {a.position, b.position};
  }
  return first;
}

}  // namespace nibble
