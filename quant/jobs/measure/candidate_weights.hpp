#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "core/memory/buffers.hpp"
#include "core/memory/scratch.hpp"
#include "nibble/measure.hpp"
#include "quant/jobs/measure/pairing.hpp"
#include "quant/stream/codings.hpp"
#include "quant/stream/source.hpp"
#include "quant/stream/weighing.hpp"

namespace nibble {

/// A candidate's counterpart of a tensor, ready to be read.
struct CandidateTensor {
  StoredForm form;
  std::uint64_t bytes = 0;
  double normal_sqnr_db = std::numeric_limits<double>::quiet_NaN();
  bool is_reference = false;  ///< the same weights, so nothing has to be read
  bool has_codes = false;     ///< whether it has codes that count_codes() can count
  Buffers::Loan memory{};     ///< of what was encoded for this, or
  std::unique_ptr<Scratch> file{};
  std::optional<WeightSource> weights{};
};

[[nodiscard]] StoredForm form_of(const StoredWeights::Tensor& stored);

/// Opens the tensors of candidates: checkpoints are read, and what plans would write is encoded.
class CandidateWeights {
 public:
  /// All arguments have to outlive this. `codings` and `weighings` are those of the candidates.
  CandidateWeights(const Pairing& pairing, std::span<const Candidate> candidates, const std::deque<Codings>& codings,
                   const std::deque<Weighing>& weighings, Buffers& buffers, const Progress& progress)
      : pairing_(pairing),
        candidates_(candidates),
        codings_(codings),
        weighings_(weighings),
        buffers_(buffers),
        progress_(progress) {}

  /// Tensor `tensor` of a candidate that is a checkpoint.
  [[nodiscard]] CandidateTensor stored(std::size_t candidate, std::size_t tensor);

  /// What a conversion would write instead of a tensor, whose weights are `reference`: encoded on all threads into
  /// memory if it fits, otherwise into a temporary file.
  [[nodiscard]] CandidateTensor encoded(std::size_t candidate, const PlannedTensor& planned,
                                        const WeightSource& reference, bool fits);

  /// The memory that encoded() takes if the result fits; nothing if it encodes nothing.
  [[nodiscard]] std::optional<std::uint64_t> memory_bytes(std::size_t candidate, const PlannedTensor& planned,
                                                          const WeightSource& reference);

 private:
  // By which the errors of a tensor are compensated, or null; valid until the next call.
  const InputFactor* factor_of(std::size_t candidate, const PlannedTensor& planned);

  const Pairing& pairing_;
  std::span<const Candidate> candidates_;
  const std::deque<Codings>& codings_;
  const std::deque<Weighing>& weighings_;
  Buffers& buffers_;
  const Progress& progress_;
  std::unique_ptr<const MadeFactor> factor_;  // the one that was needed last
  std::size_t factor_candidate_ = 0;
};

/// Throws Error(interrupted) if the measurement was cancelled.
void check_cancelled(const Progress& progress);

}  // namespace nibble
