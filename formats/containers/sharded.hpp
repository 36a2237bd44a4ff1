#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.hpp"
#include "core/memory_limit.hpp"
#include "formats/models/names.hpp"

namespace nibble {

/// An index of shards, as transformers writes it:
///
///   {"metadata": {"total_size": 2048}, "weight_map": {"lm_head.weight": "model-00002-of-00002.safetensors", ...}}
///
/// metadata is a hint; loaders ignore it, and so does nibble.
struct ShardIndex {
  std::vector<std::string> files;     ///< the shards, each once, sorted as loaders do
  NameList tensors;                   ///< each once
  std::vector<std::uint32_t> shards;  ///< of each tensor: an index into files
};

/// An index is never larger than the largest safetensors header of the same tensors.
inline constexpr std::uint64_t max_index_bytes = 100'000'000;

/// Parses an index. Throws Error(bad_input), "<label>: ...", also for a shard whose name is not that of a file in
/// the same directory: one path component of at most 255 bytes, without '/', '\\' and NUL, neither "." nor "..".
/// What the index takes is added to `memory`.
///
/// `check_shard` is called with each shard when its name is first met, and may throw: an index can name a great many
/// files, and the first one that is missing is reason enough to stop reading.
[[nodiscard]] ShardIndex parse_index(const json::Text& text, std::string_view label, TakenMemory& memory,
                                     const std::function<void(const std::string&)>& check_shard);

}  // namespace nibble
