#pragma once

#include <string>
#include <string_view>

#include "nibble/checkpoint.hpp"
#include "nibble/plan.hpp"

/// Whether two runs of a conversion write the same bytes.
namespace nibble {

/// What the bytes of the output depend on: version of nibble, recipe, files of the input and of the calibration by
/// their sizes, modification times and inodes, and what becomes of every tensor. `adapter` and `calibration` are those
/// of the manifest. Threads, memory and device are not in it, because the bytes do not depend on them. Throws
/// Error(input_changed) if a file of the input is not the one that was opened.
[[nodiscard]] std::string fingerprint(const Reader& in, const Plan& plan, std::string_view adapter,
                                      std::string_view calibration);

/// How a fingerprint of an interrupted run differs from that of this run, for people; empty if it does not.
[[nodiscard]] std::string difference(std::string_view interrupted, std::string_view ours);

}  // namespace nibble
