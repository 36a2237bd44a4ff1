#pragma once

#include <cstddef>
#include <string_view>

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

}  // namespace nibble
