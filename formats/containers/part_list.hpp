#pragma once

#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>

#include "nibble/tensor.hpp"

namespace nibble {

/// The parts of a shard, by number. Each part is made when it is asked for: the 600,000 parts of a model of 100,000
/// tensors in NF4 would take 100 MB.
class PartList {
 public:
  /// A name in two pieces, valid as long as the list.
  struct Name {
    std::string_view stem, rest;
  };

  virtual ~PartList() = default;
  [[nodiscard]] virtual std::size_t size() const noexcept = 0;
  [[nodiscard]] virtual Name name(std::size_t part) const noexcept = 0;
  [[nodiscard]] virtual DType dtype(std::size_t part) const noexcept = 0;
  [[nodiscard]] virtual TensorInfo operator[](std::size_t part) const = 0;
};

/// Whether a name comes before another, byte by byte.
[[nodiscard]] bool is_before(const PartList::Name& a, const PartList::Name& b) noexcept;

/// The numbers of the first two parts of the same name, in the order of the second. Takes 8 bytes for each part.
[[nodiscard]] std::optional<std::pair<std::size_t, std::size_t>> find_duplicate(const PartList& parts);

}  // namespace nibble
