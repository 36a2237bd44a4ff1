#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/memory/last_used.hpp"
#include "formats/adapters/adapter.hpp"
#include "formats/adapters/tensor_updates.hpp"

namespace nibble {

/// The factor B of experts that the base stores one by one. The file has it as [out, rank * experts] with the experts
/// innermost, so the numbers of one expert lie all over it. It is read once for all of them, and kept as
/// [experts, out, rank].
class ExpertFactor {
 public:
  /// `update` is that of one of the experts. Throws Error(bad_input) if a number is not finite.
  ExpertFactor(const Adapter& adapter, const LowRankUpdate& update);

  /// B of one expert, [rows, rank], from row `first` on.
  [[nodiscard]] std::span<const float> rows(std::uint64_t expert, std::uint64_t first, std::uint64_t rows) const {
    return std::span(values_).subspan((expert * out_ + first) * rank_, rows * rank_);
  }

  /// Bytes that it keeps.
  [[nodiscard]] static std::uint64_t memory_bytes(const Adapter& adapter, const LowRankUpdate& update);

 private:
  std::uint64_t out_, rank_;
  std::vector<float> values_;
};

/// By the number of B in the adapter. Experts have two, mostly: gate_up and down.
using ExpertFactors = LastUsed<ExpertFactor>;

}  // namespace nibble
