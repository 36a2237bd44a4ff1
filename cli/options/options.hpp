#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/text/suggest.hpp"
#include "nibble/memory.hpp"

/// Options that several subcommands have, declared once each. --help lists options in the order in which they are
/// added. Each subcommand chooses that order, so each function adds one option.
namespace nibble::cli {

inline constexpr const char* output_group = "Output";
inline constexpr const char* resources_group = "Resources";

/// The names of values in help texts, by which completion knows what to offer.
inline constexpr const char* file_type = "FILE";
inline constexpr const char* directory_type = "DIR";

/// The values of --max-memory and --threads.
struct ResourceOptions {
  std::string max_memory = "1GB";
  unsigned threads = 0;  ///< 0: as many as there are processors

  /// Throws Error(usage) if --max-memory is not a size.
  [[nodiscard]] Resources resources() const;
};
void add_max_memory(CLI::App& command, ResourceOptions& options);
void add_threads(CLI::App& command, ResourceOptions& options);

/// --progress STYLE; progress_style() says what it means.
void add_progress(CLI::App& command, std::string& style);

CLI::Option* add_json(CLI::App& command, bool& json);

/// The values of an option, in the order in which its help explains them, and what they mean.
template <class Value> using Choices = std::vector<std::pair<std::string_view, Value>>;

/// Makes these words the only ones that an option takes: help lists them, completion offers them, and an error names
/// them with the one that was probably meant. `also` has spellings that are accepted but not listed; for `synonyms`,
/// the error suggests the word.
CLI::Option* set_choices(CLI::Option* option, const std::vector<std::string_view>& words,
                         const std::vector<std::string_view>& also = {}, const std::vector<Synonym>& synonyms = {});

/// Makes an option take only whole numbers from `min` to `max`.
CLI::Option* set_range(CLI::Option* option, std::int64_t min, std::int64_t max);

/// The words that set_choices() gave an option; none for others.
[[nodiscard]] std::vector<std::string> choices_of(const CLI::Option& option);

/// An option whose values are words. The texts of `choices` have to be literals.
template <class Value, class Variable>
CLI::Option* add_choice(CLI::App& command, const std::string& name, Variable& variable, const Choices<Value>& choices,
                        const std::string& help, const Choices<Value>& also = {},
                        const std::vector<Synonym>& synonyms = {}) {
  std::vector<std::string_view> words, other_words;
  for (const auto& [word, unused] : choices) words.push_back(word);
  for (const auto& [word, unused] : also) other_words.push_back(word);
  const auto take = [&variable, choices, also](const std::string& text) {
    for (const Choices<Value>* const all : {&choices, &also})
      for (const auto& [word, value] : *all)
        if (word == text) variable = value;
  };
  return set_choices(command.add_option_function<std::string>(name, take, help), words, other_words, synonyms);
}

/// An option that may be repeated, with one value each time.
CLI::Option* add_repeatable(CLI::App& command, const std::string& name, std::vector<std::string>& values,
                            const std::string& help);

/// --calibration DIR, statistics of `python -m nibble.calibrate`.
CLI::Option* add_calibration(CLI::App& command, std::filesystem::path& directory, const std::string& help);
/// Throws Error(usage) if it was given without a value.
void check_calibration(const CLI::App& command, const std::filesystem::path& directory);

}  // namespace nibble::cli
