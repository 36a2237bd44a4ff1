#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/checkpoint.hpp"
#include "nibble/codec.hpp"
#include "nibble/device.hpp"
#include "nibble/error_sums.hpp"
#include "nibble/findings.hpp"
#include "nibble/memory.hpp"
#include "nibble/outcome.hpp"
#include "nibble/plan.hpp"

namespace nibble {

struct Report;

/// Receives the progress of a conversion. Calls come from one thread at a time.
class Progress {
 public:
  virtual ~Progress() = default;
  /// `done` bytes of the weights have been encoded and written; `tensor` is the current one. Where the input holds
  /// codes, the bytes are those of the weights that they stand for. With Recipe::compensate, the bytes of each second
  /// moment that is used count, too, while its factor is made. A merge first hashes the files of its adapter:
  /// until then, `tensor` is the file, and the bytes are those of these files.
  virtual void advance(std::string_view tensor, std::uint64_t done, std::uint64_t total);
  /// All of the output is on the disk; only the rename is left. Prepare the text of the report now: after this, a
  /// conversion fails only if the output does not appear.
  virtual void ready(const Report& report);
  /// If this is true, the conversion throws Error(interrupted). What it wrote is removed if no tensor was finished;
  /// otherwise it stays in a hidden directory for ConversionOptions::resume. Called from any thread, the last time
  /// after ready(), before the output appears.
  [[nodiscard]] virtual bool cancelled() const;
};

/// Several tensors together.
struct Totals {
  std::uint64_t tensors = 0;
  std::uint64_t weights = 0;
  ErrorSums error;  ///< of tensors whose error is known: not of kept ones, and of none without an error report
};

/// The tensor with the lowest signal-to-quantization-noise ratio, quantized or cast.
struct WorstTensor {
  std::string name;  ///< empty if no tensor lost anything
  double sqnr_db = std::numeric_limits<double>::infinity();
};

struct Report {
  Plan plan;                      ///< as carried out: tensors kept for non-finite values included
  Findings findings;              ///< in all tensors together; nibble.json has those of each
  std::vector<Message> warnings;  ///< those of the plan, and those about the data
  ByOutcome<Totals> totals{};
  WorstTensor worst{};
  std::string remains{};  ///< a line about old files that were replaced but could not be removed; usually empty
};

struct ConversionOptions {
  Resources resources{};                    ///< `device` is used if it is not null; otherwise
  DeviceChoice device = DeviceChoice::cpu;  ///< one is opened; automatic: if 256 MiB or more are to be quantized
  bool overwrite = false;  ///< replace an output that exists; it stays whole until the new one is complete
  /// Go on with what a conversion that was interrupted or killed has finished, if it was the same: of the same version,
  /// recipe and input; otherwise Error(output_exists) says what differs. Its bytes are compared with their hashes
  /// before they count. If there is nothing to resume, everything is converted.
  bool resume = false;
};

/// Converts the checkpoint at `in`, as open_checkpoint() finds it, and writes it to `out`: a directory for a directory,
/// a file for a file. Everything in a directory that is not a weight is carried over, and a nibble.json holds schema,
/// options, and every tensor with codec, reason, sizes, findings and hashes.
///
/// The input is read once, front to back; a tensor with one scale (fp8:scales=tensor) twice, to find the scale first.
/// The bytes do not depend on threads or memory. If it throws, no output has appeared. Throws what open_checkpoint()
/// and make_plan() throw; Error(output_exists) if `out` exists or is being written; Error(usage) if `out` is the input,
/// contains it or is inside it, or has an extension that does not fit; Error(bad_input) for non-finite values or
/// overflow that the recipe does not allow; Error(input_changed), Error(no_space), Error(io), Error(interrupted).
Report convert(const std::filesystem::path& in, const std::filesystem::path& out, const Recipe& recipe,
               const ConversionOptions& options, Progress& progress);
Report convert(const std::filesystem::path& in, const std::filesystem::path& out, const Recipe& recipe,
               const ConversionOptions& options = {});

/// The same in two steps, so that you can look at the plan before anything is written.
class PlannedConversion {
 public:
  PlannedConversion(const std::filesystem::path& in, std::filesystem::path out, const Recipe& recipe,
                    const ConversionOptions& options = {});
  /// The same for a checkpoint that is open. Its tensors are taken as plain weights.
  PlannedConversion(std::unique_ptr<const Reader> in, std::filesystem::path out, const Recipe& recipe,
                    const ConversionOptions& options = {});
  PlannedConversion(const PlannedConversion&) = delete;
  PlannedConversion& operator=(const PlannedConversion&) = delete;
  PlannedConversion(PlannedConversion&&) noexcept;
  PlannedConversion& operator=(PlannedConversion&&) noexcept;
  ~PlannedConversion();

  [[nodiscard]] const Reader& input() const noexcept;
  [[nodiscard]] const Plan& plan() const noexcept;

  /// Where codecs will run; null: the CPU. The first call of this or of a function below opens the device.
  [[nodiscard]] Device* device() const;
  [[nodiscard]] ConversionMemory memory() const;

  /// Throws what run() would, because of the state of the output, as far as that is known without writing.
  void check_output() const;

  /// Call this once. Afterwards, only input() and device() may be called.
  Report run(Progress& progress) &&;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace nibble
