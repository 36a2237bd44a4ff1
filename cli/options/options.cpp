#include "cli/options/options.hpp"

#include <fmt/format.h>

#include <charconv>

#include "cli/terminal/sizes.hpp"
#include "nibble/error.hpp"

namespace nibble::cli {

Resources ResourceOptions::resources() const {
  return {.threads = threads, .max_memory = parse_size("--max-memory", max_memory)};
}

void add_max_memory(CLI::App& command, ResourceOptions& options) {
  command
      .add_option("--max-memory", options.max_memory, "Use at most this much memory; with less, nibble may be slower")
      ->capture_default_str()
      ->type_name("SIZE")
      ->group(resources_group);
}

void add_threads(CLI::App& command, ResourceOptions& options) {
  set_range(command.add_option("--threads", options.threads,
                               "Number of threads [one for each processor that this process may use]"),
            1, 1024)
      ->group(resources_group);
}

void add_progress(CLI::App& command, std::string& style) {
  style = "auto";
  set_choices(
      command.add_option("--progress", style,
                         "How to show progress on stderr; auto is a bar on a terminal and plain lines elsewhere"),
      {"auto", "bar", "plain", "json", "none"})
      ->capture_default_str()
      ->group(output_group);
}

CLI::Option* add_json(CLI::App& command, bool& json) {
  return command.add_flag("--json", json, "Print one JSON object on stdout");
}

CLI::Option* set_choices(CLI::Option* option, const std::vector<std::string_view>& words,
                         const std::vector<std::string_view>& also, const std::vector<Synonym>& synonyms) {
  // CLI11's own check would escape the quoted name a second time, and its CheckedTransformer prints enums as bytes.
  const auto check = [option, words, also, synonyms](const std::string& text) -> std::string {
    const auto has = [&](const auto& all) { return std::find(all.begin(), all.end(), text) != all.end(); };
    if (!has(words) && !has(also)) throw Error(Errc::usage, option->get_name() + ": " + none_of(text, words, synonyms));
    return "";
  };
  return option->check(CLI::Validator(check, ""))->type_name(fmt::format("{}", fmt::join(words, "|")));
}

CLI::Option* set_range(CLI::Option* option, std::int64_t min, std::int64_t max) {
  const auto check = [option, min, max](const std::string& text) -> std::string {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < min || value > max)
      throw Error(Errc::usage, fmt::format("{}: '{}' is not a whole number from {} to {}", option->get_name(),
                                           printable(text), min, max));
    return "";
  };
  return option->check(CLI::Validator(check, ""))->type_name("N");
}

std::vector<std::string> choices_of(const CLI::Option& option) {
  const std::string& names = option.get_type_name();
  std::vector<std::string> words;
  if (names.find('|') == std::string::npos) return words;
  for (std::size_t begin = 0; begin <= names.size();) {
    const std::size_t end = std::min(names.find('|', begin), names.size());
    words.push_back(names.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

CLI::Option* add_repeatable(CLI::App& command, const std::string& name, std::vector<std::string>& values,
                            const std::string& help) {
  return command.add_option(name, values, help)->expected(1)->take_all()->allow_extra_args(false);
}

CLI::Option* add_calibration(CLI::App& command, std::filesystem::path& directory, const std::string& help) {
  return command.add_option("--calibration", directory, help)->type_name(directory_type);
}

void check_calibration(const CLI::App& command, const std::filesystem::path& directory) {
  if (command.count("--calibration") > 0 && directory.empty())
    throw Error(Errc::usage, fmt::format("--calibration needs a value: {} (see nibble {} --help)", directory_type,
                                         command.get_name()));
}

}  // namespace nibble::cli
