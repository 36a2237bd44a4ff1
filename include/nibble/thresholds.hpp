#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "nibble/measure.hpp"

namespace nibble {

/// A limit that the error of every tensor has to keep, or of those whose whole name matches (RE2 syntax).
struct Threshold {
  enum class Figure : std::uint8_t { max_rmse, min_sqnr_db, min_cosine };
  Figure figure = Figure::max_rmse;
  double limit = 0;
  std::string pattern;  ///< empty: every tensor
};

/// "0.01", or "RE=0.01". Throws Error(usage) naming `option` if there is no number, if no error and no cosine can have
/// it, or if the pattern is none.
[[nodiscard]] Threshold parse_threshold(Threshold::Figure figure, const std::string& option, const std::string& text);

/// Throws Error(usage) for a pattern that matches none of the tensors that these candidates would be held against. From
/// headers alone: measuring takes long, and this is better said before.
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

/// In the order of the thresholds, then of candidates and tensors. A tensor without finite weights to compare keeps
/// every limit; one whose figure cannot be said, that has NaN or infinities where the reference has none, or that the
/// candidate lacks, breaks it. Throws Error(usage) for a pattern that matches no tensor or is none.
[[nodiscard]] std::vector<Violation> violations(const Measurement& measurement,
                                                const std::vector<Threshold>& thresholds);

/// "max-rmse", "min-sqnr" or "min-cosine".
[[nodiscard]] std::string_view to_string(Threshold::Figure figure);

}  // namespace nibble
