#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/tensor.hpp"

namespace nibble {

/// Iterates over a list whose elements are made when they are asked for.
template <class List, class Element> class ElementIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = Element;
  using difference_type = std::ptrdiff_t;
  using pointer = void;
  using reference = Element;

  ElementIterator(const List& list, std::size_t at) : list_(&list), at_(at) {}
  [[nodiscard]] Element operator*() const { return (*list_)[at_]; }
  ElementIterator& operator++() {
    ++at_;
    return *this;
  }
  ElementIterator operator++(int) { return {*list_, at_++}; }
  [[nodiscard]] difference_type operator-(const ElementIterator& other) const {
    return static_cast<difference_type>(at_) - static_cast<difference_type>(other.at_);
  }
  bool operator==(const ElementIterator&) const = default;

 private:
  const List* list_;
  std::size_t at_;
};

/// The tensors of a header in compact form: all names are one text and all shapes one list of numbers. A model of
/// 100,000 tensors takes 8 MB, where a vector of TensorInfo takes 16. Elements are values made when asked for.
class TensorList {
 public:
  TensorList() = default;
  TensorList(std::initializer_list<TensorInfo> tensors);
  explicit TensorList(std::span<const TensorInfo> tensors);

  void push_back(const TensorInfo& tensor);
  void append(const TensorList& tensors);
  void reserve(std::size_t tensors) { rows_.reserve(tensors); }

  /// Gives a tensor other dimensions, as many as it has.
  void set_shape(std::size_t tensor, std::span<const std::uint64_t> shape);

  [[nodiscard]] std::size_t size() const noexcept { return rows_.size(); }
  [[nodiscard]] bool empty() const noexcept { return rows_.empty(); }
  [[nodiscard]] TensorInfo operator[](std::size_t tensor) const;
  [[nodiscard]] ElementIterator<TensorList, TensorInfo> begin() const { return {*this, 0}; }
  [[nodiscard]] ElementIterator<TensorList, TensorInfo> end() const { return {*this, size()}; }

  // The same without making a TensorInfo. Views are valid until the list changes.
  [[nodiscard]] std::string_view name(std::size_t tensor) const noexcept;
  [[nodiscard]] DType dtype(std::size_t tensor) const noexcept { return rows_[tensor].dtype; }
  [[nodiscard]] std::span<const std::uint64_t> shape(std::size_t tensor) const noexcept;
  [[nodiscard]] std::uint64_t bytes(std::size_t tensor) const;

  /// Bytes that the list keeps for one tensor, and for all; twice that while it grows.
  [[nodiscard]] static std::uint64_t memory_bytes(const TensorInfo& tensor) {
    return sizeof(Row) + tensor.name.size() + tensor.shape.size() * sizeof(std::uint64_t);
  }
  [[nodiscard]] std::uint64_t memory_bytes() const noexcept {
    return rows_.size() * sizeof(Row) + names_.size() + dimensions_.size() * sizeof(std::uint64_t);
  }

 private:
  struct Row {
    std::uint64_t name_end;
    std::uint64_t shape_end : 56;
    DType dtype : 8;
  };
  [[nodiscard]] std::size_t shape_begin(std::size_t tensor) const noexcept {
    return tensor == 0 ? 0 : rows_[tensor - 1].shape_end;
  }

  std::vector<Row> rows_;
  std::string names_;
  std::vector<std::uint64_t> dimensions_;
};

}  // namespace nibble
