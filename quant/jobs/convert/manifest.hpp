#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/xxh3.hpp"
#include "formats/commit/writer.hpp"
#include "nibble/convert.hpp"
#include "nibble/measure.hpp"

namespace nibble {

/// How the errors of a tensor were compensated.
struct Compensated {
  double damping;      ///< InputFactor::damping()
  Xxh3 second_moment;  ///< of its input
};

/// What nibble.json says of a recipe, a JSON object.
[[nodiscard]] std::string recipe_text(const Recipe& recipe);

/// nibble.json on its way to disk: what became of every tensor, for programs and for whoever checks the files. It holds
/// no path, no time and no machine, so that equal input and options give equal bytes. It is written while tensors are
/// finished, because for 100,000 tensors it has 120 MB; what is known only at the end comes last.
class Manifest {
 public:
  /// Writes the beginning. `adapter` is ReaderInternals::adapter() of the input, `calibration` Weighing::identity().
  Manifest(const Plan& plan, Writer& out, std::string_view adapter = {}, std::string_view calibration = {});

  /// One stored part of a tensor.
  struct Part {
    TensorInfo info;
    std::vector<Xxh3> hashes;  ///< of its chunks (Xxh3Chunks)
  };
  /// Adds a tensor, with either kind of error or neither. Returns its entry.
  std::string add(const PlannedTensor& tensor, std::size_t shard, const Findings& findings, const EncodingError* basic,
                  const MeasuredError* full, std::span<const Part> parts,
                  const std::optional<Compensated>& compensated = {});
  /// Adds an entry that add() has returned.
  void add_entry(std::string_view entry);

  /// A position to come back to.
  struct Mark {
    std::uint64_t bytes;
    std::size_t tensors;
  };
  [[nodiscard]] Mark mark() const { return {written_ + text_.size(), tensors_}; }
  /// Drops everything that was added after `mark`.
  void rewind(const Mark& mark);

  /// Writes the end. Call once.
  void end(const Report& report);

 private:
  void flush();

  Writer& out_;
  std::uint64_t written_ = 0;
  std::size_t tensors_ = 0;
  std::string text_;  // the text that is not written yet
};

}  // namespace nibble
