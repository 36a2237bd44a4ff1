#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "nibble/error_sums.hpp"
#include "nibble/tensor.hpp"

/// Error measures, as sums that can be added up: of weights w of a reference and the weights t that stand for them,
/// e = t - w. Non-finite weights on either side are counted but enter no sum.
///
/// Sums are those of tiles of 4096 weights, added up in order in fp64, so the figures do not depend on the processor,
/// nor on threads and chunks if the pieces that are added up are always the same, as in measure(). Within a tile at
/// most 256 products are added up in fp32, in 16 lanes, and those sums in fp64: a relative error below 1e-6. Tiles with
/// squares that fp32 cannot hold are summed in fp64 throughout.
namespace nibble {

/// The size of the blocks whose absmax and error are reported, whatever block size a codec has.
inline constexpr std::size_t metric_block = 64;

struct ErrorStats : ErrorSums {
  std::uint64_t nonzero = 0;  ///< pairs with w != 0
  std::uint64_t nan = 0;      ///< in t
  std::uint64_t inf = 0;
  std::uint64_t lost = 0;  ///< pairs where w is finite and t is not, or where one is beyond fp32 and they differ
  double magnitude = 0;    ///< sum of |e|
  double relative = 0;     ///< sum of |e / w| over w != 0
  double max_abs = 0;      ///< largest |e|
  std::uint64_t max_abs_at = 0;
  double worst_square = 0;            ///< largest sum of e^2 in metric_block weights
  std::uint64_t worst_square_at = 0;  ///< where those begin
  float worst_absmax = 0;             ///< largest |w| of them

  /// Adds the weights that follow these.
  void add(const ErrorStats& next);

  [[nodiscard]] double mae() const;       ///< mean of |e|
  [[nodiscard]] double mean_rel() const;  ///< mean of |e / w| over w != 0
  [[nodiscard]] double worst_rmse() const;
  bool operator==(const ErrorStats&) const = default;
};

/// The error of weights [first, first + reference.size()); `first` is a multiple of 4096 if several are added up.
/// Throws Error(usage) if the sizes differ.
[[nodiscard]] ErrorStats compare(std::span<const float> reference, std::span<const float> test,
                                 std::uint64_t first = 0);

/// The same, added to those of the weights before.
void compare(std::span<const float> reference, std::span<const float> test, std::uint64_t first, ErrorStats& stats);

/// Statistics of weights.
struct WeightStats {
  std::uint64_t count = 0;  ///< finite ones that fp32 can hold
  std::uint64_t nan = 0;
  std::uint64_t inf = 0;
  std::uint64_t beyond_fp32 = 0;  ///< finite fp64 numbers that fp32 cannot hold; describe() sees them as infinite
  float pivot = 0;                ///< the moments are about this, which is near the mean
  double first = 0;               ///< sum of w - pivot
  double second = 0;              ///< sum of its square, and so on
  double third = 0;
  double fourth = 0;
  std::uint64_t blocks = 0;  ///< of metric_block weights
  double absmax_sum = 0;     ///< of the absmax of those
  double absmax_square = 0;
  float absmax_min = std::numeric_limits<float>::infinity();
  float absmax_max = 0;

  /// Adds the weights that follow these. The pivots must be equal.
  void add(const WeightStats& next);

  [[nodiscard]] double mean() const;
  [[nodiscard]] double rms() const;
  [[nodiscard]] double kurtosis() const;  ///< fourth central moment over the squared variance: 3 for a normal one
  [[nodiscard]] double absmax_mean() const;
  [[nodiscard]] double absmax_std() const;
  bool operator==(const WeightStats&) const = default;
};

/// The mean of the finite weights among the first 4096 of a tensor.
[[nodiscard]] float choose_pivot(std::span<const float> weights);

[[nodiscard]] WeightStats describe(std::span<const float> weights, float pivot);

}  // namespace nibble
