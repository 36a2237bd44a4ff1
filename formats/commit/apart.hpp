#pragma once

#include <filesystem>

#include "nibble/checkpoint.hpp"

/// No command writes over its own input. Files and folders are compared by what they are, not by how paths are spelled;
/// what cannot be looked at is not ours to write over either, and is no obstacle.
namespace nibble {

/// Throws Error(usage) if the output is the input, holds it, lies in it, or holds what links to its weights,
/// configuration or index lead to; replacing one would destroy the other. Also if a file that is written beside the
/// output (its manifest) is part of the input.
void check_apart(const std::filesystem::path& out, const Reader& source);

/// Throws Error(usage) if `file` is one of the files that a checkpoint consists of.
void check_no_input(const std::filesystem::path& file, const Reader& source);

}  // namespace nibble
