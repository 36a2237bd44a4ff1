#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/xxh3.hpp"
#include "nibble/error_sums.hpp"
#include "nibble/findings.hpp"

/// What the log of a conversion (WorkLog) says, for a run that resumes it.
namespace nibble {

/// A tensor that has been encoded and written, with what it adds to the report.
struct FinishedTensor {
  std::size_t tensor = 0;  ///< in the plan
  Findings findings;
  ErrorSums error;                          ///< for the totals
  double sqnr_db = 0;                       ///< for the worst tensor
  std::string entry;                        ///< of the manifest
  std::vector<std::vector<Xxh3>> hashes{};  ///< of each part's chunks (Xxh3Chunks)
};

/// A tensor that is not stored as planned because of what was found in it. It comes before the finished tensors of its
/// shard.
struct KeptTensor {
  std::size_t tensor = 0;
  Findings findings;
};

using Finished = std::variant<FinishedTensor, KeptTensor>;

[[nodiscard]] std::string record_of(const FinishedTensor& finished);
[[nodiscard]] std::string record_of(const KeptTensor& kept);

/// Nothing if it is not a record of this version.
[[nodiscard]] std::optional<Finished> finished_of(std::string_view record);

}  // namespace nibble
