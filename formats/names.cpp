#include "formats/names.hpp"

#include <algorithm>
#include <functional>
#include <tuple>

namespace nibble {

NameIndex::NameIndex(const std::vector<std::string_view>& names) {
  entries_.reserve(names.size());
  for (std::size_t i = 0; i < names.size(); ++i)
    entries_.push_back({std::hash<std::string_view>()(names[i]), names[i], i});
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
