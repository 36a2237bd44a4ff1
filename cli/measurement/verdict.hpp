#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "nibble/measure.hpp"

/// The verdict on a conversion. The table, the JSON document and the report say the same, because all of them get it
/// from here.
namespace nibble::cli {

/// The tensors of a candidate that were converted to one form.
struct Verdict {
  StoredForm form;
  std::uint64_t tensors = 0;
  std::uint64_t exact = 0;                ///< of them, without any error
  double min_db = 0, max_db = 0;          ///< SQNR of the others
  double min_normal = 0, max_normal = 0;  ///< what normal weights would have; NaN if that is not known
  std::uint64_t worse = 0, broken = 0;    ///< tensors that are judged so
  std::size_t worst = 0;                  ///< index into Measurement::tensors, if not all are exact
  /// "nf4: 37 tensors at 19.9 to 20.7 dB, as expected (normal weights: 20.7 dB); worst: NAME"
  [[nodiscard]] std::string text(const Measurement& measurement) const;
};

/// One for each form, codecs first, then in the order of the tensors. Kept tensors are in none.
[[nodiscard]] std::vector<Verdict> verdicts(const Measurement& measurement, const MeasuredCandidate& candidate);

}  // namespace nibble::cli
