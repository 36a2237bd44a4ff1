#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>

namespace nibble {

/// Replaces the lower triangle and the diagonal of a symmetric matrix A [k, k], in row-major order, by L with
/// A = L transposed(L). The upper triangle is left as it is. Uses all threads of the caller's oneTBB arena; the bits do
/// not depend on their number, nor on the CPU target.
///
/// `progress` is called from time to time, on the caller's thread, with the share that is done, which grows to 1. What
/// it throws ends the factorization.
///
/// Returns the column of the first pivot that is not positive, if there is one: A is not positive definite then, and
/// the lower triangle holds nothing of use.
[[nodiscard]] std::optional<std::size_t> factor_cholesky(std::span<double> matrix, std::size_t k,
                                                         const std::function<void(double)>& progress = {});

}  // namespace nibble
