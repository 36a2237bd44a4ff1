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
  std::string remains{};  ///< Writer::remains(), where a PlannedConversion wrote; empty as a rule
};

struct ConversionOptions {
  Resources resources{};                    ///< `device` is used if it is not null; otherwise
  DeviceChoice device = DeviceChoice::cpu;  ///< one is opened; automatic: if 256 MiB or more are to be quantized
  bool overwrite = false;                   ///< as CreateOptions has it
};

/// Converts the checkpoint at `in` and writes it to `out`: a directory for a directory, a file for a file, as
/// open_checkpoint() and create_checkpoint() find them. Throws what those, make_plan(), plan_memory() and the convert()
/// below throw, and Error(usage) for an `out` whose name says something else than what is written.
Report convert(const std::filesystem::path& in, const std::filesystem::path& out, const Recipe& recipe,
               const ConversionOptions& options, Progress& progress);
Report convert(const std::filesystem::path& in, const std::filesystem::path& out, const Recipe& recipe,
               const ConversionOptions& options = {});

/// The same in two steps: what is going to happen can be looked at before anything is written.
class PlannedConversion {
 public:
  PlannedConversion(const std::filesystem::path& in, std::filesystem::path out, const Recipe& recipe,
                    const ConversionOptions& options = {});
  PlannedConversion(const PlannedConversion&) = delete;
  PlannedConversion& operator=(const PlannedConversion&) = delete;
  PlannedConversion(PlannedConversion&&) noexcept;
  PlannedConversion& operator=(PlannedConversion&&) noexcept;
  ~PlannedConversion();

  [[nodiscard]] const Reader& input() const noexcept;
  [[nodiscard]] const Plan& plan() const noexcept;

  /// Where codecs are going to run; null: the CPU. The first call of this and of what follows opens the device.
  [[nodiscard]] Device* device() const;
  [[nodiscard]] MemoryPlan memory() const;

  /// Throws what run() would because of what is at the output, as far as that can be told without writing anything.
  void check_output() const;

  /// Once. Afterwards, input() and device() are what is left.
  Report run(Progress& progress) &&;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The last step alone: converts `in` as planned and commits `out`, with a nibble.json that holds schema, options, and
/// every tensor with codec, reason, sizes, findings and hashes.
///
/// The input is read once, front to back, in chunks; every chunk is encoded on its own thread and written to its
/// final place. The bytes do not depend on threads or memory. If it throws, no output has appeared. Throws
/// Error(bad_input) for non-finite values or overflow that the recipe does not allow, Error(input_changed),
/// Error(no_space), Error(io), Error(interrupted).
Report convert(const Reader& in, Plan plan, Writer& out, const Resources& resources, Progress& progress);

}  // namespace nibble
