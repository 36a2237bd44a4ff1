#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/terminal/json.hpp"
#include "cli/terminal/progress.hpp"
#include "cli/terminal/terminal.hpp"
#include "nibble/advise.hpp"
#include "nibble/checkpoint.hpp"
#include "nibble/codec_spec.hpp"
#include "nibble/memory.hpp"

namespace nibble::cli {

struct AdviseArguments {
  std::string reference;
  std::string size;               ///< "4.5bits", "4.5bpw", "5GB", "5GiB"
  std::vector<CodecSpec> codecs;  ///< to choose among; empty: all
  bool allow_nibble_only = false;
  std::filesystem::path calibration;  ///< may be empty
  bool json = false;
  ProgressStyle progress = ProgressStyle::none;
  Resources resources;
};

/// What is advised for a size.
struct SizedAdvice {
  std::uint64_t max_bytes = 0;
  Advice advice;
};

/// Measures the formats that advice needs, and chooses among them. Tells of warnings.
[[nodiscard]] SizedAdvice find_advice(Terminal& terminal, const AdviseArguments& arguments, const Reader& reference);

/// The options of `nibble convert` that do what is advised, as a shell takes them.
[[nodiscard]] std::string advised_options(const Advice& advice);

/// What the choice costs, and what other sizes would, for people.
[[nodiscard]] std::string advice_text(const AdviseArguments& arguments, const Reader& reference,
                                      const SizedAdvice& found);

/// The same for programs.
[[nodiscard]] Json advice_json(const Reader& reference, const SizedAdvice& found);

/// nibble measure --advise: prints the command, and the advice.
void run_advise(Terminal& terminal, const AdviseArguments& arguments);

}  // namespace nibble::cli
