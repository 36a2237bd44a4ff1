#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "nibble/codec_spec.hpp"
#include "nibble/findings.hpp"
#include "nibble/tensor.hpp"

/// What a conversion is asked for.
namespace nibble {

/// A codec for the tensors whose whole name matches (RE2 syntax).
struct Rule {
  std::string pattern;
  CodecSpec codec;
};

/// What to do with a tensor in which a codec meets NaN, infinity, or (int8) values that overflow fp16.
enum class Nonfinite : std::uint8_t {
  keep,      ///< store that tensor as it is, and list its module as skipped
  error,     ///< stop
  quantize,  ///< NaN counts as 0, an infinity as the largest finite magnitude of its block or row
};

/// Which input a conversion takes.
enum class Intake : std::uint8_t {
  plain,      ///< plain weights, and FP8, which is an input like any other; the rest is refused
  any,        ///< everything that nibble can decode
  quantized,  ///< the same, and something in it has to be quantized
};

/// What nibble.json says about the error of a tensor.
enum class ErrorReport : std::uint8_t {
  none,
  basic,  ///< from sums computed during the conversion
  full,   ///< the figures of measure(): the input is read a second time
};

/// Everything, apart from the input, that decides the bytes of a conversion.
struct Recipe {
  CodecSpec to;  ///< for the model's linear layers, or, if it casts, for all weights
  Intake intake = Intake::plain;
  /// The type of decoded weights on their way to the codec: F32, BF16 or F16. Default: the type that they had before
  /// they were quantized. With F32 they are exact, so that a cast to another type rounds them once.
  std::optional<DType> decoded_as;
  OnOverflow on_overflow = OnOverflow::automatic;
  Nonfinite nonfinite = Nonfinite::keep;
  ErrorReport error_report = ErrorReport::basic;
  /// A directory of statistics (`python -m nibble.calibrate`) with which searches of absmax weigh the errors of
  /// columns; empty: they count alike. A tensor without statistics causes a warning; if none has any, the plan is
  /// refused.
  std::filesystem::path calibration;
  /// Make up for the rounding errors of each column of a weight in the columns after it, by the second moments in
  /// `calibration` (docs/compensation.md). For NF4, FP4 and int8; a tensor of these for which that is not possible is
  /// quantized without, and counted in a warning. If it is possible for none, the plan is refused.
  bool compensate = false;
  std::vector<Rule> rules;         ///< the last match wins
  std::vector<std::string> skips;  ///< patterns of tensors that stay as they are; win over rules
  bool default_skips = true;       ///< keep what transformers keeps: output embeddings and the like
  CodecSpec embeddings;            ///< for these kinds of tensors
  CodecSpec lm_head;
  CodecSpec experts;
  std::optional<DType> compute_dtype;  ///< default: the 16-bit type of the source; F32 for an F32 source
  bool allow_nibble_only = false;      ///< accept a result that transformers cannot load
  std::uint64_t max_shard_bytes = 5'000'000'000;
  bool keep_shards = false;  ///< one output shard per input shard
};

}  // namespace nibble
