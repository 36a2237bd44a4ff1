#pragma once

#include <memory>
#include <string>

#include "core/memory/scratch.hpp"

namespace nibble {

/// A Scratch in a file of an open directory, which errors call `label`.
[[nodiscard]] std::unique_ptr<Scratch> make_file_scratch(int directory, std::string label);

}  // namespace nibble
