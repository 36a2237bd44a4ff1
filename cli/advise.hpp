#pragma once

#include <string>
#include <vector>

#include "cli/terminal/progress.hpp"
#include "cli/terminal/terminal.hpp"
#include "nibble/codec_spec.hpp"
#include "nibble/memory.hpp"

namespace nibble::cli {

struct AdviseArguments {
  std::string reference;
  std::string size;               ///< "4.5bits", "4.5bpw", "5GB", "5GiB"
  std::vector<CodecSpec> codecs;  ///< to choose among; empty: all
  bool allow_nibble_only = false;
  bool json = false;
  ProgressStyle progress = ProgressStyle::none;
  Resources resources;
};

/// Measures the formats that advice needs, and prints it.
void run_advise(Terminal& terminal, const AdviseArguments& arguments);

}  // namespace nibble::cli
