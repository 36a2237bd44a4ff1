#pragma once

#include <filesystem>

#include "nibble/checkpoint.hpp"

namespace nibble {

/// The output is what the input is, a directory or a file, and its weights are safetensors. Throws Error(usage) if the
/// name of the output says something else.
void check_output_name(const std::filesystem::path& out, const Reader& in);

}  // namespace nibble
