#include "nibble/tensor_list.hpp"

#include <algorithm>
#include <cassert>

namespace nibble {
namespace {

constexpr std::uint64_t dimensions_mask =
    (std::uint64_t{1} << 56) - 1;  // of all tensors together: more than any disk holds

}  // namespace

TensorList::TensorList(std::initializer_list<TensorInfo> tensors)
    : TensorList(std::span(tensors.begin(), tensors.size())) {}

TensorList::TensorList(std::span<const TensorInfo> tensors) {
  reserve(tensors.size());
  for (const TensorInfo& tensor : tensors) push_back(tensor);
}

void TensorList::push_back(const TensorInfo& tensor) {
  names_ += tensor.name;
  dimensions_.insert(dimensions_.end(), tensor.shape.begin(), tensor.shape.end());
  rows_.push_back({names_.size(), dimensions_.size() & dimensions_mask, tensor.dtype});
}

void TensorList::append(const TensorList& tensors) {
  const std::uint64_t names = names_.size();
  const std::uint64_t dimensions = dimensions_.size();
  names_ += tensors.names_;
  dimensions_.insert(dimensions_.end(), tensors.dimensions_.begin(), tensors.dimensions_.end());
  for (const Row& row : tensors.rows_)
    rows_.push_back({names + row.name_end, (dimensions + row.shape_end) & dimensions_mask, row.dtype});
}

void TensorList::set_shape(std::size_t tensor, std::span<const std::uint64_t> shape) {
  assert(shape.size() == this->shape(tensor).size());
  std::copy(shape.begin(), shape.end(), dimensions_.begin() + static_cast<std::ptrdiff_t>(shape_begin(tensor)));
}

TensorInfo TensorList::operator[](std::size_t tensor) const {
  const auto dimensions = shape(tensor);
  return {std::string(name(tensor)), dtype(tensor), {dimensions.begin(), dimensions.end()}};
}

std::string_view TensorList::name(std::size_t tensor) const noexcept {
  const std::uint64_t begin = tensor == 0 ? 0 : rows_[tensor - 1].name_end;
  return {names_.data() + begin, rows_[tensor].name_end - begin};
}

std::span<const std::uint64_t> TensorList::shape(std::size_t tensor) const noexcept {
  const std::size_t begin = shape_begin(tensor);
  return {dimensions_.data() + begin, rows_[tensor].shape_end - begin};
}

std::uint64_t TensorList::bytes(std::size_t tensor) const {
  return byte_count(dtype(tensor), element_count(shape(tensor)));
}

}  // namespace nibble
