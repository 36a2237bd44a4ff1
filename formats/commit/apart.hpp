#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "nibble/checkpoint.hpp"

/// No command writes over its own input. Files and folders are compared by identity, not by the spelling of paths;
/// those that cannot be accessed cannot be overwritten either, and are no obstacle.
namespace nibble {

/// Throws Error(usage) if the output is the input, contains it, is inside it, or contains the targets of links to files
/// that the input was read from; replacing one would destroy the other. The same for `links`, paths in the input: those
/// of what is carried over. Also if a file that is written beside the output (its manifest) is part of the input.
void check_apart(const std::filesystem::path& out, const Reader& source, std::span<const std::string> links = {});

/// Throws Error(usage) if `file` is one of the files that a checkpoint consists of.
void check_no_input(const std::filesystem::path& file, const Reader& source);

}  // namespace nibble
