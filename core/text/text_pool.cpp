#include "core/text/text_pool.hpp"

#include <algorithm>
#include <cstddef>
#include <functional>

namespace nibble {
namespace {

constexpr std::size_t max_looks = 16;

}  // namespace

std::uint32_t TextPool::add(std::string_view text) {
  if (2 * (ends_.size() + 1) > table_.size()) grow();
  const std::size_t mask = table_.size() - 1;
  std::size_t at = std::hash<std::string_view>()(text) & mask;
  // Texts come from files and could be chosen to collide: after a few looks, storing one again is cheaper.
  for (std::size_t looks = 0; table_[at] != 0 && looks < max_looks; ++looks, at = (at + 1) & mask)
    if ((*this)[table_[at] - 1] == text) return table_[at] - 1;
  text_ += text;
  ends_.push_back(text_.size());
  table_[at] = static_cast<std::uint32_t>(ends_.size());
  return table_[at] - 1;
}

std::string_view TextPool::operator[](std::uint32_t number) const noexcept {
  const std::uint64_t begin = number == 0 ? 0 : ends_[number - 1];
  return {text_.data() + begin, ends_[number] - begin};
}

void TextPool::grow() {
  table_.assign(std::max<std::size_t>(64, 2 * table_.size()), 0);
  for (std::uint32_t number = 0; number < ends_.size(); ++number) {
    std::size_t at = std::hash<std::string_view>()((*this)[number]) & (table_.size() - 1);
    for (std::size_t looks = 0; table_[at] != 0 && looks < max_looks; ++looks) at = (at + 1) & (table_.size() - 1);
    table_[at] = number + 1;
  }
}

}  // namespace nibble
