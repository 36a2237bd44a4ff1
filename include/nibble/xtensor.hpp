#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <xtensor/xadapt.hpp>
#include <xtensor/xbuilder.hpp>
#include <xtensor/xindex_view.hpp>
#include <xtensor/xmath.hpp>
#include <xtensor/xsort.hpp>
#include <xtensor/xtensor.hpp>
#include <xtensor/xvectorize.hpp>
#include <xtensor/xview.hpp>

namespace nibble {

/// Memory as an xtensor expression of this shape, row-major, without a copy. The memory must outlive it.
template <std::size_t rank>
[[nodiscard]] auto as_xtensor(std::span<const float> values, const std::array<std::size_t, rank>& shape) {
  return xt::adapt(values.data(), values.size(), xt::no_ownership(), shape);
}

}  // namespace nibble
