#pragma once

#include <filesystem>

#include "nibble/checkpoint.hpp"

namespace nibble {

/// nibble writes safetensors, and as input so output: a directory for a directory, a file for a file. Throws
/// Error(usage) if the name of the output says something else.
void check_output_name(const std::filesystem::path& out, const Reader& in);

}  // namespace nibble
