#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "nibble/checkpoint.hpp"

namespace nibble {

/// As open_checkpoint(), without asking whether anything can decode what is quantized: only the schemes know.
[[nodiscard]] std::unique_ptr<Reader> open_files(const std::filesystem::path& path, std::uint64_t max_memory);

}  // namespace nibble
