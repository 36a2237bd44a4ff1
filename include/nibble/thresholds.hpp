#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "nibble/measure.hpp"

namespace nibble {

/// A limit on the error of every tensor, or of the tensors whose whole name matches (RE2 syntax).
struct Threshold {
  enum class Figure : std::uint8_t { max_rmse, min_sqnr_db, min_cosine };
  Figure figure = Figure::max_rmse;
  double limit = 0;
  std::string pattern;  ///< empty: every tensor
};

/// Throws Error(usage) for a pattern that matches none of the tensors that would be compared. Reads only headers:
/// measuring takes long, so this error should come first.
void check_patterns(const Reader& reference, std::span<const Candidate> candidates,
                    const std::vector<Threshold>& thresholds);

/// A tensor that breaks one.
struct Violation {
  std::size_t candidate = 0;
  std::size_t tensor = 0;  ///< index into Measurement::tensors; their number if the candidate lacks it
  std::string name;
  Threshold threshold;
  double value = 0;
};

/// In the order of the thresholds, then of candidates and tensors. A tensor without finite weights to compare passes
/// every limit. A tensor fails it if its figure is undefined, if it has NaN or infinities where the reference has none,
/// or if the candidate lacks it. Throws Error(usage) for a pattern that is invalid or matches no tensor.
[[nodiscard]] std::vector<Violation> violations(const Measurement& measurement,
                                                const std::vector<Threshold>& thresholds);

/// "max-rmse", "min-sqnr" or "min-cosine".
[[nodiscard]] std::string_view to_string(Threshold::Figure figure);

}  // namespace nibble
