#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/checkpoint.hpp"

/// llm_int8_skip_modules of transformers: how its entries are matched, and the list that makes transformers agree with
/// which modules were quantized.
namespace nibble {

/// Whether `entry` in llm_int8_skip_modules makes transformers leave a module plain: taken as a regular expression
/// it matches the name from its start up to a dot or the end, or taken as text it ends the name.
///
/// Throws Error(usage) if the entry is no regular expression that RE2 reads.
[[nodiscard]] bool skips(std::string_view entry, std::string_view module);

/// llm_int8_skip_modules for a directory in which `quantized` are the modules stored quantized and `plain` the
/// linear layers stored plain (the `keeps` of the tensors that were not quantized), by name in the model.
///
/// Such a list replaces transformers' own, so it also names what the default leaves plain but the file does not have,
/// such as a tied lm_head. No entry matches a quantized module: one that would, such as `score` beside
/// `layers.0.score`, is written `^score$`, which matches that whole name only.
[[nodiscard]] std::vector<std::string> skip_list(const ModelClass& model, bool tied,
                                                 std::span<const std::string> quantized,
                                                 std::span<const std::string> plain);

}  // namespace nibble
