#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nibble {

/// An index of shards, as transformers writes it:
///
///   {"metadata": {"total_size": 2048}, "weight_map": {"lm_head.weight": "model-00002-of-00002.safetensors", ...}}
///
/// metadata is a hint that loaders ignore, and so does this.
struct ShardIndex {
  std::vector<std::string> files;                            ///< the shards, each once, sorted as loaders do
  std::vector<std::pair<std::string, std::size_t>> tensors;  ///< a name and its shard, an index into files
};

/// Indexes larger than a safetensors header of the same tensors could be do not exist.
inline constexpr std::uint64_t max_index_bytes = 100'000'000;

/// Parses an index. Throws Error(bad_input), "<label>: ...", also for a shard whose name is not that of a file in
/// the same directory: one path component of at most 255 bytes, without '/', '\\' and NUL, neither "." nor "..".
[[nodiscard]] ShardIndex parse_index(std::string_view text, std::string_view label);

}  // namespace nibble
