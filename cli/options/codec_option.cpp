#include "cli/options/codec_option.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "nibble/codec_spec.hpp"
#include "nibble/error.hpp"
#include "quant/codecs/codecs.hpp"

namespace nibble::cli {
namespace {

std::string_view name_in(std::string_view text) { return text.substr(0, text.find(':')); }

bool is_among(std::string_view name, std::span<const std::string_view> names) {
  return std::ranges::find(names, name) != names.end();
}

[[noreturn]] void refuse_rule(const std::string& text, const std::string& fact) {
  throw Error(Errc::usage, fmt::format("--tensor '{}': {}", printable(text), fact));
}

}  // namespace

std::vector<std::string_view> target_names() {
  std::vector<std::string_view> names(codec_names().begin(), codec_names().end());
  std::erase(names, CodecSpec().name());
  return names;
}

CodecSpec parse_codec(std::string_view option, std::string_view text, std::span<const std::string_view> names) {
  if (const std::string_view name = name_in(text); !is_among(name, names))
    throw Error(Errc::usage, fmt::format("{}: {}", option, none_of_codecs(name, names)));
  try {
    return text;
  } catch (const Error& error) {
    throw Error(Errc::usage, fmt::format("{} '{}': {}", option, printable(std::string(text)), error.what()));
  }
}

Rule parse_rule(const std::string& text) {
  const std::string_view whole = text;
  if (whole.find('=') == std::string_view::npos) refuse_rule(text, "not of the form RE=CODEC");
  for (std::size_t equals = whole.find('='); equals != std::string_view::npos; equals = whole.find('=', equals + 1)) {
    const std::string_view codec = whole.substr(equals + 1);
    if (!is_among(name_in(codec), codec_names())) continue;
    try {
      return {text.substr(0, equals), codec};
    } catch (const Error& error) {
      refuse_rule(text, error.what());
    }
  }
  refuse_rule(text, "codec " + none_of_codecs(name_in(whole.substr(whole.rfind('=') + 1)), codec_names()));
}

std::string codecs_where(const std::function<bool(const CodecSpec&)>& is_meant) {
  std::vector<std::string_view> names;
  std::ranges::copy_if(codec_names(), std::back_inserter(names), is_meant);
  if (names.size() < 2) return fmt::format("{}", fmt::join(names, ""));
  const std::string_view last = names.back();
  names.pop_back();
  return fmt::format("{} and {}", fmt::join(names, ", "), last);
}

std::string codecs_with(std::string_view option) {
  return codecs_where([option](const CodecSpec& codec) { return codec.has(option); });
}

std::vector<std::string> codec_words() {
  std::vector<std::string> words;
  for (const std::string_view name : target_names()) {
    const CodecSpec spec(name);
    words.emplace_back(name);
    for (const CodecOption& option : spec.info().options)
      for (const std::string_view value : option.values)
        if (const CodecSpec other = spec.with(option.name, value); other != spec) words.push_back(other.text());
  }
  return words;
}

std::string codec_help() {
  std::string text =
      "CODEC is NAME or NAME:OPTION=VALUE,OPTION=VALUE..., without spaces, with each option at most once:\n"
      "nf4:block-size=32,double-quant=no. The names, with their options:\n";
  std::vector<std::string_view> plain;
  for (const std::string_view name : codec_names())
    if (CodecSpec(name).info().options.empty()) plain.push_back(name);
  fmt::format_to(std::back_inserter(text), "  {}: no options\n", fmt::join(plain, ", "));
  // Codecs of a kind declare the same options.
  std::vector<std::pair<std::span<const CodecOption>, std::string>> kinds;
  for (const std::string_view name : codec_names()) {
    const std::span<const CodecOption> options = CodecSpec(name).info().options;
    if (options.empty()) continue;
    const auto kind = std::ranges::find(kinds, options.data(), [](const auto& known) { return known.first.data(); });
    if (kind == kinds.end())
      kinds.emplace_back(options, name);
    else
      kind->second += fmt::format(", {}", name);
  }
  for (const auto& [options, names] : kinds) {
    fmt::format_to(std::back_inserter(text), "  {}:\n", names);
    for (const CodecOption& option : options)
      fmt::format_to(std::back_inserter(text), "    {}={} [{}]\n        {}\n", option.name,
                     fmt::join(option.values, "|"), option.values[option.default_value], option.help);
  }
  return text;
}

Recipe measured_recipe(const CodecSpec& codec) {
  Recipe recipe;
  recipe.to = codec;
  recipe.nonfinite = Nonfinite::keep;
  recipe.on_overflow = OnOverflow::keep;
  return recipe;
}

}  // namespace nibble::cli
