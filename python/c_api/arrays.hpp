#pragma once

#include <oneapi/tbb/blocked_range.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/partitioner.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "core/checked.hpp"
#include "core/workers.hpp"
#include "nibble/c_api.h"
#include "nibble/tensor.hpp"

/// What the functions on arrays share: arguments that are checked before anything is touched, and threads.
namespace nibble::c_api {

/// The type of a nibble_dtype. Throws Error(usage) if there is none of this number.
[[nodiscard]] DType dtype_of(std::int32_t dtype);

/// Throws Error(usage) unless the array has `bytes` bytes (invalid: more than 64 bits hold) at an address that is a
/// multiple of `alignment`.
void check_array(const nibble_array& array, Checked bytes, std::size_t alignment, std::string_view name);

/// The array's elements, after check_array().
template <class T> std::span<T> elements(const nibble_array& array) {
  return {static_cast<T*>(array.data), static_cast<std::size_t>(array.bytes / sizeof(T))};
}

/// The threads that all calls share, started by the first that needs them.
[[nodiscard]] Workers& workers();

/// Calls f(first, count) for all of [0, n) in pieces of `piece`, on `threads` threads, or on all of workers() if it is
/// 0. One piece is done by the caller itself.
template <class F> void for_each_piece(std::uint64_t n, std::uint64_t piece, std::uint32_t threads, F&& f) {
  const std::uint64_t pieces = n / piece + (n % piece != 0);
  const auto run = [&](std::uint64_t begin, std::uint64_t end) {
    for (std::uint64_t i = begin; i < end; ++i) f(i * piece, std::min(piece, n - i * piece));
  };
  if (pieces <= 1 || threads == 1) return run(0, pieces);
  workers().execute([&] {
    // As many tasks as threads are allowed; if any number is, as many as there are pieces.
    const std::uint64_t tasks = threads == 0 ? pieces : std::min<std::uint64_t>(threads, pieces);
    tbb::parallel_for(
        tbb::blocked_range<std::uint64_t>(0, tasks, 1),
        [&](const tbb::blocked_range<std::uint64_t>& range) {
          for (std::uint64_t task = range.begin(); task < range.end(); ++task)
            run(task * (pieces / tasks) + std::min(task, pieces % tasks),
                (task + 1) * (pieces / tasks) + std::min(task + 1, pieces % tasks));
        },
        tbb::simple_partitioner());
  });
}

}  // namespace nibble::c_api
