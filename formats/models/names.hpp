#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nibble/tensor_list.hpp"

namespace nibble {

/// Names in one text.
class NameList {
 public:
  /// Bytes that a name takes in addition to its text.
  static constexpr std::uint64_t bytes_per_name = sizeof(std::uint64_t);

  NameList() = default;
  NameList(std::initializer_list<std::string_view> names) {
    for (const std::string_view name : names) push_back(name);
  }

  void push_back(std::string_view name) {
    text_ += name;
    ends_.push_back(text_.size());
  }
  [[nodiscard]] std::size_t size() const noexcept { return ends_.size(); }
  [[nodiscard]] bool empty() const noexcept { return ends_.empty(); }

  /// Valid until the next push_back().
  [[nodiscard]] std::string_view operator[](std::size_t name) const noexcept {
    const std::uint64_t begin = name == 0 ? 0 : ends_[name - 1];
    return {text_.data() + begin, ends_[name] - begin};
  }

 private:
  std::string text_;
  std::vector<std::uint64_t> ends_;
};

/// Finds names and the ones that occur twice, in n log n steps whatever names a file holds: in a hash table they could
/// be chosen to collide. The names are not copied, so their list must not move.
class NameIndex {
 public:
  explicit NameIndex(const NameList& names);
  explicit NameIndex(const TensorList& tensors);

  /// The position of a name.
  [[nodiscard]] std::optional<std::size_t> find(std::string_view name) const;

  /// The positions of the first two equal names, in the order of the second.
  [[nodiscard]] std::optional<std::pair<std::size_t, std::size_t>> duplicate() const;

 private:
  using NameAt = std::function<std::string_view(std::size_t)>;
  NameIndex(std::size_t names, NameAt name_at);

  struct Entry {
    std::uint32_t hash;  // compared first: names begin alike, hashes do not
    std::uint32_t position;
  };
  NameAt name_at_;
  std::vector<Entry> entries_;

 public:
  static constexpr std::uint64_t bytes_per_name = sizeof(Entry);
};

}  // namespace nibble
