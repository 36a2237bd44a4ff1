#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "nibble/checkpoint.hpp"
#include "nibble/codec_spec.hpp"
#include "nibble/convert.hpp"
#include "nibble/error_sums.hpp"
#include "nibble/memory.hpp"
#include "nibble/metrics.hpp"
#include "nibble/outcome.hpp"
#include "nibble/plan.hpp"

namespace nibble {

/// What is compared with a reference: a checkpoint, or the output that a conversion of the reference would have.
struct Candidate {
  std::string name;
  const Reader* checkpoint = nullptr;  ///< opened with accept_quantized
  std::optional<Plan> plan;            ///< of the reference, if there is no checkpoint
};

/// Histograms of a tensor; only if they were asked for.
struct Counts {
  std::vector<std::uint64_t> codes;  ///< of the 16 codes of 4-bit codecs
  /// k, and the number of errors with 2^k <= |e| < 2^(k + 1); ascending, only numbers above 0.
  std::vector<std::pair<int, std::uint64_t>> errors;
  std::uint64_t exact = 0;  ///< e = 0, or too small for a normal fp32 number

  /// -sum p log2 p over the codes, in bits; NaN without codes.
  [[nodiscard]] double entropy() const;
};

/// How a tensor is stored: as codes of a codec, or plainly, as numbers of a type.
class StoredForm {
 public:
  StoredForm() = default;
  StoredForm(CodecSpec codec) : form_(codec) {}  // NOLINT(google-explicit-constructor)
  StoredForm(DType dtype) : form_(dtype) {}      // NOLINT(google-explicit-constructor)

  [[nodiscard]] bool quantized() const noexcept { return std::holds_alternative<CodecSpec>(form_); }
  /// Null if it is plain.
  [[nodiscard]] const CodecSpec* codec() const noexcept { return std::get_if<CodecSpec>(&form_); }
  /// "nf4:double-quant=no", "bfloat16"
  [[nodiscard]] std::string text() const;

  friend bool operator==(const StoredForm&, const StoredForm&) = default;

 private:
  std::variant<DType, CodecSpec> form_;
};

/// A tensor of the reference, as it is compared.
struct MeasuredWeights {
  TensorInfo info;
  std::string kind;                    ///< its name without layer and expert numbers: "self_attn.q_proj"
  std::optional<std::uint64_t> layer;  ///< the first number in its name
  StoredForm form;
  std::uint64_t bytes = 0;  ///< stored in the reference
  WeightStats stats;

  /// For matrices of at most 2^16 columns: columns whose root mean square is at least 6 times the median one, and
  /// their share of the sum of squares. (LLM.int8() finds them in activations; in weights they cause the same error.)
  std::optional<std::uint64_t> outlier_columns;
  double outlier_energy = 0;
};

/// The candidate's counterpart of a tensor.
struct MeasuredError {
  StoredForm form;
  std::uint64_t bytes = 0;  ///< of all its parts
  ErrorStats stats;
  /// The error of the layer's output, if its inputs are not correlated: sums over the weights, each multiplied by the
  /// root mean square of its input, relative to the largest of the layer. Their `count` is 0 without statistics.
  ErrorSums output;
  Counts counts;
  double normal_sqnr_db = std::numeric_limits<double>::quiet_NaN();  ///< Codec::normal_sqnr_db() of its form
};

/// `kept` if the candidate has the tensor in the same form and with the same weights as the reference: such a tensor
/// says nothing about a conversion.
[[nodiscard]] Outcome outcome_of(const MeasuredWeights& reference, const MeasuredError& error);

/// Whether any weight differs, NaN and infinities included.
[[nodiscard]] bool has_error(const MeasuredWeights& reference, const MeasuredError& error);

struct MeasuredCandidate {
  std::string name;
  std::uint64_t bytes = 0;                            ///< of all its tensors, compared or not
  std::vector<std::optional<MeasuredError>> tensors;  ///< as Measurement::tensors has them
  std::vector<std::string> missing;                   ///< tensors of the reference that it lacks, or of other shapes
};

struct Measurement {
  std::string name;
  std::uint64_t bytes = 0;
  std::vector<MeasuredWeights> tensors;  ///< in the order of the files
  std::vector<MeasuredCandidate> candidates;
  bool has_statistics = false;  ///< MeasureOptions::calibration was given
};

struct MeasureOptions {
  bool counts = false;  ///< fill in Counts
  Resources resources;
  /// A directory of statistics (`python -m nibble.calibrate`), with which MeasuredError::output is filled in; may be
  /// empty. It has no effect on what conversions would write: their recipes name their own.
  std::filesystem::path calibration{};
};

/// Compares candidates with a reference, each plain or quantized, tensor by tensor: all are decoded to fp32 on the fly,
/// chunk by chunk, in one pass over the reference. What a conversion would write is encoded into memory, or, if the
/// tensor is too large for that, into a temporary file, which is read back (double quantization needs the whole tensor
/// before any of it can be compared).
///
/// Matrices that transformers stores transposed, and experts that are one tensor there, are compared as the candidate
/// has them. The figures do not depend on threads and memory. Throws Error(bad_input), also for
/// statistics that list no tensor of the reference, or an input of another width than its tensor, Error(io),
/// Error(no_space) if max_memory is too little, Error(interrupted).
[[nodiscard]] Measurement measure(const Reader& reference, std::span<const Candidate> candidates,
                                  const MeasureOptions& options, Progress& progress);

}  // namespace nibble
