#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "nibble/checkpoint.hpp"
#include "nibble/measure.hpp"
#include "nibble/recipe.hpp"

/// Which tensor of a checkpoint should get which codec, so that all of them together take no more than so many bytes
/// and lose as little as possible.
///
///   cost = sum over tensors of  n * (sum e^2 / sum w^2)
///
/// n weights w of which e is the error: the relative squared error of every tensor, weighted by how many weights it
/// has. (A tensor of large weights counts no more than one of small weights, for layers are normalized.) Where the
/// measurement has the error of the layers' outputs, that takes the place of the weights' own, matrix by matrix.
///
/// Where statistics have the sensitivity a of a tensor, which is how much the model's output suffers for each relative
/// squared error of its weights, the cost is
///
///   N / A * a * (sum e^2 / sum w^2)
///
/// N and A are the sums of n and a over the tensors whose sensitivity is known and that a codec can quantize. They make
/// these costs comparable with those of the other tensors.
namespace nibble {

/// What advise() has to know the errors of: a plan for each codec of `among`, or of all codecs with their default
/// options if that is empty. Within what transformers can load these are the codecs that quantize, for the linear
/// layers, each with embeddings of 32 or 64 bits as bf16; with `allow_nibble_only` the same for every tensor that they
/// can store, and casts to 16 bits where those are smaller. Searches of absmax use `calibration`, if it is not empty
/// (Recipe::calibration). Reads nothing but headers.
[[nodiscard]] std::vector<Candidate> advice_formats(const Reader& reference, bool allow_nibble_only,
                                                    std::span<const CodecSpec> among = {},
                                                    const std::filesystem::path& calibration = {});

struct AdviseOptions {
  std::uint64_t max_bytes = 0;     ///< of all tensors as they are stored, without headers
  bool allow_nibble_only = false;  ///< any codec for any tensor; otherwise one codec that quantizes for all linear
                                   ///< layers that are not kept, and bf16 for embeddings
  /// A directory of statistics whose sensitivities are used, if it has any; may be empty. MeasureOptions::calibration.
  std::filesystem::path calibration{};
  std::uint64_t max_memory = OpenOptions().max_memory;  ///< for reading their manifest
};

/// All tensors of a checkpoint at some size.
struct AdvicePoint {
  std::uint64_t bytes = 0;
  double cost = 0;     ///< as above
  double sqnr_db = 0;  ///< 10 log10(sum w^2 / sum e^2) of the tensors that are not kept; infinite where none differs
};

struct AdvisedTensor {
  std::size_t source = 0;  ///< index into Reader::tensors(), of the first part where there are several
  CodecSpec codec;
};

struct Advice {
  std::vector<AdvisedTensor> tensors;  ///< in the order of the checkpoint
  AdvicePoint chosen;
  std::uint64_t weights = 0;       ///< in all tensors
  std::vector<AdvicePoint> curve;  ///< what other sizes would cost, the smallest first: at most 64 points
  Recipe recipe;  ///< make_plan() turns it into these codecs and bytes. `to`, `embeddings`, `skips`, `rules`,
                  ///< `allow_nibble_only` and, if an absmax is searched with statistics, `calibration` are set,
                  ///< everything else has its default
  bool by_sensitivity = false;  ///< the sensitivity of at least one tensor that can be quantized is known
  bool by_outputs = false;      ///< otherwise: the error of the output of at least one is known
  /// Lines about tensors that had to be counted in another way than the statistics were meant for.
  std::vector<std::string> warnings;

  [[nodiscard]] double bits_per_weight(std::uint64_t bytes) const;
};

/// `formats` are those of advice_formats(), and `measurement` is what measure() found for them.
///
/// The choices of a tensor are the (bytes, cost) that were measured, and staying as it is (F64 becomes fp32, which
/// counts as exact). The walk begins with the smallest choice of each tensor and follows the lower convex hulls of the
/// choices. The step that saves the most cost per byte comes first; equal steps go by the order of tensors. When a step
/// does not fit, later steps that fit are still taken. The cost exceeds the optimum by at most what the first step that
/// did not fit would have saved. Without `allow_nibble_only` this is done for each codec that quantizes, and the result
/// with the lowest cost is taken, the first one if several are equal. A codec that met or made NaN or infinity in a
/// tensor is no choice for that tensor.
///
/// Throws Error(usage) if the smallest choice of all tensors takes more than `max_bytes`, or if `measurement` is not of
/// these formats, and what Calibration does.
[[nodiscard]] Advice advise(const Reader& reference, std::span<const Candidate> formats, const Measurement& measurement,
                            const AdviseOptions& options);

}  // namespace nibble
