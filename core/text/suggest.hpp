#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace nibble {

/// Another name of a word: int4 for nf4.
struct Synonym {
  std::string_view other;  ///< in lower case
  std::string_view word;
};

/// The word of `known` that someone who typed `given` most likely meant: the same in another case, the word of a
/// synonym, the only word that begins like this, or one that differs in a letter or two. A word with other digits is
/// another format, not a mistyped one: fp8 does not mean fp4.
[[nodiscard]] std::optional<std::string_view> nearest(std::string_view given, std::span<const std::string_view> known,
                                                      std::span<const Synonym> synonyms = {});

/// "'NF4' is not one of int8, nf4, fp4: did you mean nf4?"
[[nodiscard]] std::string none_of(std::string_view given, std::span<const std::string_view> known,
                                  std::span<const Synonym> synonyms = {});

}  // namespace nibble
