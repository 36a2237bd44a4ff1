#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>
#include <xtensor/xadapt.hpp>
#include <xtensor/xbuilder.hpp>
#include <xtensor/xindex_view.hpp>
#include <xtensor/xmath.hpp>
#include <xtensor/xsort.hpp>
#include <xtensor/xtensor.hpp>
#include <xtensor/xvectorize.hpp>
#include <xtensor/xview.hpp>

#include "nibble/weights.hpp"

namespace nibble {

/// Memory as an xtensor expression of this shape, row-major, without a copy. The memory must outlive it.
template <std::size_t rank>
[[nodiscard]] auto as_xtensor(std::span<const float> values, const std::array<std::size_t, rank>& shape) {
  return xt::adapt(values.data(), values.size(), xt::no_ownership(), shape);
}

/// The weights of a tensor (nibble/weights.hpp) likewise: `xt::amax(xt::abs(as_xtensor(weights)), {1})`. `weights` must
/// outlive the expression, so it cannot be a temporary.
[[nodiscard]] inline auto as_xtensor(const Weights& weights) {
  return xt::adapt(weights.values.data(), weights.values.size(), xt::no_ownership(),
                   std::vector<std::size_t>(weights.shape.begin(), weights.shape.end()));
}
auto as_xtensor(Weights&&) = delete;

}  // namespace nibble
