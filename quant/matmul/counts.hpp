#pragma once

#include <cstddef>
#include <type_traits>

/// Loops that keep sums in registers are compiled for each number of rows. These call the one that fits.
namespace nibble::matmul {

/// f(count) with `count`, which is from 1 to max, as a constant.
template <std::size_t max, class F> void with_constant(std::size_t count, const F& f) {
  if (count == max) return f(std::integral_constant<std::size_t, max>());
  if constexpr (max > 1) with_constant<max - 1>(count, f);
}

/// f(count, first) for parts of [0, all) that have at most `max` each, nearly equally many: a few rows alone would wait
/// for each other's sums.
template <std::size_t max, class F> void in_parts(std::size_t all, const F& f) {
  const std::size_t parts = (all + max - 1) / max;
  for (std::size_t part = 0, first = 0; part < parts; ++part) {
    const std::size_t end = all * (part + 1) / parts;
    with_constant<max>(end - first, [&](auto count) { f(count, first); });
    first = end;
  }
}

/// f(count, first) for groups of [0, all), with `count`, which is `size` or for the last few 1, as a constant.
template <std::size_t size, class F> void in_groups(std::size_t all, const F& f) {
  std::size_t first = 0;
  for (; first + size <= all; first += size) f(std::integral_constant<std::size_t, size>(), first);
  for (; first < all; ++first) f(std::integral_constant<std::size_t, 1>(), first);
}

}  // namespace nibble::matmul
