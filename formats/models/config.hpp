#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/memory_limit.hpp"
#include "nibble/checkpoint.hpp"

/// config.json as text. It is read and changed without parsing it into a tree, because real configurations contain
/// values that a tree would lose: Infinity and NaN as Python writes them, 1e400, integers of 30 digits, the order of
/// keys. Beyond that it has to be JSON: UTF-8, at most 128 levels, one object, its keys unique.
///
/// Errors are Error(bad_input), "<label>: ...".
namespace nibble::config {

inline constexpr const char* file_name = "config.json";
inline constexpr std::uint64_t max_bytes = 16 << 20;  // the largest seen have 2 MB, a table of labels

/// A key of the outermost object, and its position in the text.
struct Member {
  std::string key;  ///< without quotes and escapes
  std::size_t key_begin = 0, key_end = 0;
  std::size_t value_begin = 0, value_end = 0;
};

/// The keys under which a model says how it is quantized, in the order in which transformers looks for them.
inline constexpr std::array<std::string_view, 2> quantization_keys{"quantization_config", "compression_config"};

/// Passes on the members of the outermost object in turn, without keeping any. Keys may occur twice.
void for_each_member(std::string_view text, std::string_view label, const std::function<void(const Member&)>& found);

/// What config.json says about the model. A quantization_config is found in any part of it. Throws Error(no_space) if
/// `memory` does not allow what comparing the keys takes, up to four times the text.
[[nodiscard]] ModelConfig read(std::string_view text, std::string_view label, MemoryLimit& memory);

/// The text of a model whose layers no longer share weights: tie_word_embeddings is false in the outermost object and
/// in those of its language model, since versions of transformers look at one or the other.
[[nodiscard]] std::string untie(std::string text, std::string_view label);

/// How much memory patch() takes for this text.
[[nodiscard]] std::uint64_t rewrite_bytes(std::string_view text, std::string_view label);

/// A change to the outermost object.
struct Edit {
  std::string key;
  std::optional<std::string> value;  ///< JSON; nothing removes the key
};

/// Applies the edits in turn. An existing key keeps its position, a new one goes to the end; both are indented as the
/// file is. Every byte outside the values that change is kept. Takes rewrite_bytes() bytes of memory.
[[nodiscard]] std::string patch(std::string text, std::span<const Edit> edits, std::string_view label);

}  // namespace nibble::config
