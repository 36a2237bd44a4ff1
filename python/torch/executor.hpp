#pragma once

#include <cstddef>
#include <functional>

#include "nibble/matmul.hpp"
#include "python/torch/tensors.hpp"

namespace nibble::torch_operators {

/// nibble::matmul on torch's threads, which are there already: others beside them would compete for the processors.
inline void on_torch_threads(std::size_t tasks, const std::function<void(std::size_t, std::size_t)>& work) {
  parallel_for(static_cast<std::int64_t>(tasks), 1, [&](std::int64_t begin, std::int64_t end) {
    work(static_cast<std::size_t>(begin), static_cast<std::size_t>(end));
  });
}

/// All elements of a contiguous tensor.
[[nodiscard]] inline std::span<const std::byte> bytes_of(const Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()),
          static_cast<std::size_t>(tensor.numel()) * tensor.element_size()};
}
[[nodiscard]] inline std::span<const std::byte> bytes_of(const std::optional<Tensor>& tensor) {
  return tensor ? bytes_of(*tensor) : std::span<const std::byte>();
}
[[nodiscard]] inline std::span<std::byte> writable_bytes_of(const Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()),
          static_cast<std::size_t>(tensor.numel()) * tensor.element_size()};
}

}  // namespace nibble::torch_operators
