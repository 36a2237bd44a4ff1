#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "nibble/checkpoint.hpp"

/// No command writes over its own input. Files and folders are compared by identity, not by the spelling of paths;
/// files that cannot be accessed cannot be overwritten either, so they are not an obstacle.
namespace nibble {

/// Throws Error(usage) if the output is the input, contains it, is inside it, or contains the targets of links to files
/// that the input was read from; replacing one would destroy the other. The same holds for `links`, the paths of
/// carried-over links in the input, and for a file that is written beside the output (its manifest).
void check_apart(const std::filesystem::path& out, const Reader& source, std::span<const std::string> links = {});

/// Throws Error(usage) if `file` is one of the files that a checkpoint consists of.
void check_no_input(const std::filesystem::path& file, const Reader& source);

}  // namespace nibble
