#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/checkpoint.hpp"
#include "nibble/codec.hpp"
#include "nibble/error_sums.hpp"
#include "nibble/findings.hpp"
#include "nibble/memory.hpp"
#include "nibble/outcome.hpp"
#include "nibble/recipe.hpp"

namespace nibble {

struct Report;

/// Told how far a conversion has come. Calls come from one thread at a time.
class Progress {
 public:
  virtual ~Progress() = default;
  /// `done` bytes of the input have been written out encoded; `tensor` is the one in work.
  virtual void advance(std::string_view tensor, std::uint64_t done, std::uint64_t total);
  /// All of the output is on the disk, and what is missing is its name. What has to be said about it is best made now:
  /// after this, a conversion fails only if the output does not appear.
  virtual void ready(const Report& report);
  /// A conversion that finds this true undoes what it wrote and throws Error(interrupted). Any thread.
  [[nodiscard]] virtual bool cancelled() const;
};

/// Several tensors together.
struct Totals {
  std::uint64_t tensors = 0;
  std::uint64_t weights = 0;
  ErrorSums error;  ///< of those whose error is known: of none that was kept, and none at all without an error report
};

/// The tensor with the lowest signal-to-quantization-noise ratio, quantized or cast.
struct WorstTensor {
  std::string name;  ///< empty if no tensor lost anything
  double sqnr_db = std::numeric_limits<double>::infinity();
};

struct Report {
  Plan plan;                      ///< as carried out: tensors kept for non-finite values included
  Findings findings;              ///< in all tensors together; of each, nibble.json tells
  std::vector<Message> warnings;  ///< those of the plan and what the data added
  ByOutcome<Totals> totals{};
  WorstTensor worst{};
};

/// Converts `in` as planned and commits `out`, with a nibble.json that holds schema, options, and every tensor with
/// codec, reason, sizes, findings and hashes.
///
/// The input is read once, front to back, in chunks; every chunk is encoded on its own thread and written to its
/// final place. The bytes do not depend on threads or memory. If it throws, no output has appeared. Throws
/// Error(bad_input) for non-finite values or overflow that the recipe does not allow, Error(input_changed),
/// Error(no_space), Error(io), Error(interrupted).
Report convert(const Reader& in, Plan plan, Writer& out, const Resources& resources, Progress& progress);

}  // namespace nibble
