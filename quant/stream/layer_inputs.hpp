#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "formats/calibration/calibration.hpp"
#include "nibble/checkpoint.hpp"
#include "nibble/plan.hpp"
#include "quant/quantizers/column_weights.hpp"

namespace nibble {

/// What a tensor is multiplied by: an input of a calibration.
struct LayerInput {
  std::size_t input;  ///< in Calibration::inputs()
  bool by_rows;       ///< all weights of a row are multiplied by the same value; otherwise all of a column are
};

/// Finds the input of a tensor of a plan. It is nothing for a tensor that the statistics do not list, for an expert
/// that no token reached, for tensors with several matrices, and for experts' square matrices that are stored in one
/// tensor: nothing says which side their input is on. Throws Error(bad_input) if the input has another width than the
/// tensor.
[[nodiscard]] std::optional<LayerInput> layer_input(const Reader& in, const Calibration& statistics,
                                                    const PlannedTensor& tensor);

/// How much the errors of a matrix's weights count at the output of its layer: in proportion to the mean square of what
/// they are multiplied by. Thread-safe.
class OutputWeights {
 public:
  /// All weights count alike.
  OutputWeights() = default;
  OutputWeights(const Calibration& statistics, const LayerInput& input, std::uint64_t columns)
      : roots_(statistics.mean_square(input.input)), weights_per_root_(input.by_rows ? columns : 1) {}

  /// Whether all weights count alike because nothing is known of their input.
  [[nodiscard]] bool empty() const noexcept { return roots_.empty(); }

  /// Multiplies each weight of `weights`, which begin with weight `first` of the matrix, by the root mean square of
  /// what it is multiplied by, relative to the largest (ColumnWeights).
  void apply(std::uint64_t first, std::span<float> weights) const;

 private:
  ColumnWeights roots_;
  std::uint64_t weights_per_root_ = 1;
};

}  // namespace nibble
