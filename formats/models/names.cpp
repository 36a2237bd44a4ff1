#include "formats/models/names.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

#include "nibble/error.hpp"

namespace nibble {
namespace {

std::uint32_t hash_of(std::string_view name) { return static_cast<std::uint32_t>(std::hash<std::string_view>()(name)); }

}  // namespace

NameIndex::NameIndex(const NameList& names) : NameIndex(names.size(), [&names](std::size_t i) { return names[i]; }) {}

NameIndex::NameIndex(const TensorList& tensors)
    : NameIndex(tensors.size(), [&tensors](std::size_t i) { return tensors.name(i); }) {}

NameIndex::NameIndex(std::size_t names, NameAt name_at) : name_at_(std::move(name_at)) {
  if (names > std::numeric_limits<std::uint32_t>::max())
    throw Error(Errc::bad_input, fmt::format("{} names exceed 32 bits", names));
  entries_.reserve(names);
  for (std::size_t i = 0; i < names; ++i) entries_.push_back({hash_of(name_at_(i)), static_cast<std::uint32_t>(i)});
  std::sort(entries_.begin(), entries_.end(), [&](const Entry& a, const Entry& b) {
    if (a.hash != b.hash) return a.hash < b.hash;
    const int order = name_at_(a.position).compare(name_at_(b.position));
    return order != 0 ? order < 0 : a.position < b.position;
  });
}

std::optional<std::size_t> NameIndex::find(std::string_view name) const {
  const std::uint32_t hash = hash_of(name);
  const auto entry = std::lower_bound(entries_.begin(), entries_.end(), hash, [&](const Entry& a, std::uint32_t h) {
    return a.hash != h ? a.hash < h : name_at_(a.position) < name;
  });
  if (entry == entries_.end() || entry->hash != hash || name_at_(entry->position) != name) return std::nullopt;
  return entry->position;
}

std::optional<std::pair<std::size_t, std::size_t>> NameIndex::duplicate() const {
  std::optional<std::pair<std::size_t, std::size_t>> first;
  for (std::size_t i = 1; i < entries_.size(); ++i) {
    const Entry &a = entries_[i - 1], &b = entries_[i];
    if (a.hash == b.hash && (!first || b.position < first->second) && name_at_(a.position) == name_at_(b.position))
      first = {a.position, b.position};
  }
  return first;
}

}  // namespace nibble
