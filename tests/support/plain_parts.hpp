#pragma once

#include <cstddef>

#include "formats/containers/part_list.hpp"
#include "nibble/tensor_list.hpp"

namespace nibble::test {

/// The tensors of a list as they are.
class PlainParts final : public PartList {
 public:
  explicit PlainParts(const TensorList& tensors) : tensors_(tensors) {}
  [[nodiscard]] std::size_t size() const noexcept override { return tensors_.size(); }
  [[nodiscard]] Name name(std::size_t part) const noexcept override { return {tensors_.name(part), {}}; }
  [[nodiscard]] DType dtype(std::size_t part) const noexcept override { return tensors_.dtype(part); }
  [[nodiscard]] TensorInfo operator[](std::size_t part) const override { return tensors_[part]; }

 private:
  const TensorList& tensors_;
};

}  // namespace nibble::test
