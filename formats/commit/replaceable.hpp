#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

/// What may leave a directory that a new output replaces.
namespace nibble {

/// What nibble says about a conversion, beside the weights.
inline constexpr const char* manifest_file = "nibble.json";

/// Whether a file of this name at the top of a model directory is one that transformers or nibble write and read
/// there: weights in safetensors and torch files (but not of a peft adapter), indexes, configurations, tokenizers,
/// nibble.json. If one of an old model stayed beside a new one, a loader would take it for a part of that.
[[nodiscard]] bool is_model_file(std::string_view name);

struct Replaceable {
  std::vector<std::string> entries{};  ///< those that leave
  std::string lost{};                  ///< a path that would be gone with them, and that the new output lacks
};

/// Of the entries of an open directory, those that leave when the paths `fresh` come in: files of a model, and what has
/// the name of something new. Never what begins with a dot. A folder leaves only for another; whatever it has that the
/// other lacks would be lost. Throws Error(io).
[[nodiscard]] Replaceable replaceable(int directory, const std::vector<std::string>& entries,
                                      std::span<const std::string> fresh, std::string_view label);

}  // namespace nibble
