#pragma once

#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "nibble/checkpoint.hpp"
#include "nibble/tensor_list.hpp"

namespace nibble {

/// Whether a name comes before another, byte by byte.
[[nodiscard]] bool is_before(const PartList::Name& a, const PartList::Name& b) noexcept;

/// Finds names and the ones that occur twice, in n log n steps whatever names a file holds: in a hash table they
/// could be chosen to collide. The names are not copied and have to stay where they are.
class NameIndex {
 public:
  explicit NameIndex(const std::vector<std::string_view>& names);
  explicit NameIndex(const TensorList& tensors);

  /// The position of a name.
  [[nodiscard]] std::optional<std::size_t> find(std::string_view name) const;

  /// The positions of the first two equal names, in the order of the second.
  [[nodiscard]] std::optional<std::pair<std::size_t, std::size_t>> duplicate() const;

 private:
  void sort();

  struct Entry {
    std::size_t hash;  // compared first: names begin alike, hashes do not
    std::string_view name;
    std::size_t position;
  };
  std::vector<Entry> entries_;
};

}  // namespace nibble
