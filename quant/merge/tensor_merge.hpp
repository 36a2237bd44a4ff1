#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "formats/adapters/tensor_updates.hpp"
#include "nibble/checkpoint.hpp"
#include "quant/merge/expert_factor.hpp"
#include "quant/merge/low_rank.hpp"

namespace nibble {

/// Of the finite weights of a row or column.
struct SquaresOfFinite {
  double sum = 0;
  std::uint64_t count = 0;
};

/// Merges the update of one tensor W of the base, range by range. With dW of tensor_updates.hpp, in fp32:
///
///   merged = W + dW
///   merged = m[o] / ||W[o] + dW[o]|| * (W + dW)   for DoRA; o is the row, or the column if W is transposed
///
/// If the adapter replaces W, its tensor takes the place of W; rows of trained tokens are replaced at the end. The
/// bytes do not depend on threads, ranges or the CPU target. Within rounding it is what peft's merge_and_unload()
/// computes if the model is in fp32.
class TensorMerge {
 public:
  /// Reads the factors, the magnitudes, the rows and the bias into memory. Adapter and update must outlive it. `shape`
  /// is that of W. If W is one of several experts (update.low_rank->expert), B comes from `expert_factors`, so that it
  /// is read once for all of them. Throws Error(bad_input) if one of their numbers is not finite.
  TensorMerge(const Adapter& adapter, const TensorUpdate& update, const Shape& shape, ExpertFactors& expert_factors);

  /// About how many bytes it keeps.
  [[nodiscard]] static std::uint64_t memory_bytes(const Adapter& adapter, const TensorUpdate& update,
                                                  const Shape& shape);

  /// Puts the weights from `first` on into `out`.
  using ReadBase = std::function<void(std::uint64_t first, std::span<float> out)>;

  /// To be called before merge(). DoRA needs the norms of all of W + dW and reads W once for them, in panels of
  /// panel_bytes (or a row, if that is more), one for each thread of the caller's oneTBB arena; `read` is called
  /// concurrently. A weight that is not finite enters no norm. Does nothing without DoRA. Throws Error(bad_input) if a
  /// norm is 0 or infinite, or if no weight enters it: there is nothing to scale then, and peft makes NaN of it.
  void measure_norms(const ReadBase& read);
  static constexpr std::uint64_t panel_bytes = 1 << 20;

  /// The merged weights of W[first, first + base.size()); `merged` may be `base`. Thread-safe.
  void merge(std::uint64_t first, std::span<const float> base, std::span<float> merged) const;

 private:
  void read_factors(ExpertFactors& expert_factors);
  void read_updated(std::uint64_t first, std::span<float> out, const ReadBase& read) const;
  void add_squares_of_columns(std::span<const float> panel, std::span<SquaresOfFinite> squares) const;
  void divide_factor(std::size_t output, const SquaresOfFinite& squares);
  [[nodiscard]] bool is_scaled() const noexcept { return !factors_.empty(); }
  [[nodiscard]] std::uint64_t factor_of(std::uint64_t weight) const;
  void add_update(std::uint64_t first, std::span<float> merged) const;
  void replace_rows(std::uint64_t first, std::span<float> merged) const;

  const Adapter& adapter_;
  const TensorUpdate& update_;
  std::uint64_t rows_, columns_;  // of all experts together
  std::optional<LowRankProduct> product_;
  std::vector<float> factors_;  // DoRA: magnitudes, then those over the norms
  std::vector<float> tokens_, bias_;
  std::vector<std::uint32_t> token_of_row_;  // sorted by row: indices into update_.token_rows
};

}  // namespace nibble
