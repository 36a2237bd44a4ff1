// The codecs by name, and the grammar in which users name them.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "core/text/suggest.hpp"
#include "nibble/error.hpp"
#include "quant/codecs/codecs.hpp"

// One line per codec: quant/codecs/<name>.cpp defines <name>_codec. "keep" comes first, because it is the default
// CodecSpec.
#define NIBBLE_CODECS(X) \
  X(keep)                \
  X(fp32)                \
  X(fp16)                \
  X(bf16)                \
  X(int8)                \
  X(nf4)                 \
  X(fp4)                 \
  X(fp8)

namespace nibble {

#define NIBBLE_DECLARE(name) extern const RegisteredCodec name##_codec;
NIBBLE_CODECS(NIBBLE_DECLARE)
#undef NIBBLE_DECLARE

namespace {

#define NIBBLE_NAME(name) std::string_view(#name),
constexpr std::array registered_names{NIBBLE_CODECS(NIBBLE_NAME)};
#undef NIBBLE_NAME

#define NIBBLE_ADDRESS(name) &name##_codec,
constexpr std::array registered_codecs{NIBBLE_CODECS(NIBBLE_ADDRESS)};
#undef NIBBLE_ADDRESS

std::size_t find_codec(std::string_view name) {
  const auto found = std::ranges::find(registered_names, name);
  if (found == registered_names.end()) throw Error(Errc::usage, "codec " + none_of_codecs(name, registered_names));
  return static_cast<std::size_t>(found - registered_names.begin());
}

std::vector<std::string_view> option_names(const CodecInfo& codec) {
  std::vector<std::string_view> names;
  for (const CodecOption& option : codec.options) names.push_back(option.name);
  return names;
}

[[noreturn]] void refuse_option(const CodecInfo& codec, std::string_view fact) {
  throw Error(Errc::usage, fmt::format("codec {}: an option {}; each is NAME=VALUE, and the names are {}", codec.name,
                                       fact, fmt::join(option_names(codec), ", ")));
}

// `_` may stand for `-`.
std::size_t find_option(const CodecInfo& codec, std::string_view given) {
  std::string name(given);
  std::ranges::replace(name, '_', '-');
  const auto found = std::ranges::find(codec.options, name, &CodecOption::name);
  if (found != codec.options.end()) return static_cast<std::size_t>(found - codec.options.begin());
  if (codec.options.empty()) throw Error(Errc::usage, fmt::format("codec {} has no options", codec.name));
  if (given.empty()) refuse_option(codec, "has no name");
  throw Error(Errc::usage, fmt::format("option of codec {}: {}", codec.name, none_of(given, option_names(codec))));
}

std::uint8_t find_value(const CodecInfo& codec, const CodecOption& option, std::string_view value) {
  const auto found = std::ranges::find(option.values, value);
  if (value.empty())
    throw Error(Errc::usage, fmt::format("{} of codec {}: has no value; it takes one of {}", option.name, codec.name,
                                         fmt::join(option.values, ", ")));
  if (found == option.values.end())
    throw Error(Errc::usage, fmt::format("{} of codec {}: {}", option.name, codec.name, none_of(value, option.values)));
  return static_cast<std::uint8_t>(found - option.values.begin());
}

// Cuts off and returns the text before the first `separator`; `rest` then begins after it. Without a separator, returns
// all of `rest` and leaves it empty.
std::string_view cut(std::string_view& rest, char separator) {
  const std::size_t end = std::min(rest.find(separator), rest.size());
  const std::string_view first = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return first;
}

// The text of a CodecSpec.
struct ParsedCodec {
  std::size_t codec = 0;                                                   // index into registered_codecs
  std::array<std::optional<std::uint8_t>, CodecSpec::max_options> values;  // of the options that are given
};

ParsedCodec parse(std::string_view text) {
  const bool has_options = text.find(':') != std::string_view::npos;
  ParsedCodec parsed{find_codec(cut(text, ':')), {}};
  const CodecInfo& codec = registered_codecs.at(parsed.codec)->info;
  for (bool more = has_options; more;) {
    more = text.find(',') != std::string_view::npos;
    std::string_view value = cut(text, ',');
    if (value.empty() && !codec.options.empty()) refuse_option(codec, "is empty");
    const std::size_t option = find_option(codec, cut(value, '='));
    if (parsed.values.at(option))
      throw Error(Errc::usage, fmt::format("{} of codec {} is given twice", codec.options[option].name, codec.name));
    parsed.values.at(option) = find_value(codec, codec.options[option], value);
  }
  return parsed;
}

}  // namespace

std::string none_of_codecs(std::string_view given, std::span<const std::string_view> names) {
  std::vector<Synonym> synonyms;
  for (const RegisteredCodec* const codec : registered_codecs)
    for (const std::string_view other : codec->synonyms) synonyms.push_back({other, codec->info.name});
  return none_of(given, names, synonyms);
}

std::span<const std::string_view> codec_names() { return registered_names; }

CodecSpec::CodecSpec(std::string_view text) {
  const ParsedCodec parsed = parse(text);
  codec_ = static_cast<std::uint8_t>(parsed.codec);
  for (std::size_t i = 0; i < info().options.size(); ++i)
    values_.at(i) = parsed.values.at(i).value_or(static_cast<std::uint8_t>(info().options[i].default_value));
}

std::vector<std::string_view> given_options(std::string_view text) {
  const ParsedCodec parsed = parse(text);
  const std::span<const CodecOption> options = registered_codecs.at(parsed.codec)->info.options;
  std::vector<std::string_view> given;
  for (std::size_t i = 0; i < options.size(); ++i)
    if (parsed.values.at(i)) given.push_back(options[i].name);
  return given;
}

const CodecInfo& CodecSpec::info() const { return registered_codecs.at(codec_)->info; }

bool CodecSpec::has(std::string_view option) const {
  return std::ranges::find(info().options, option, &CodecOption::name) != info().options.end();
}

std::size_t CodecSpec::index(std::string_view option) const { return values_.at(find_option(info(), option)); }

CodecSpec CodecSpec::with(std::string_view option, std::string_view value) const {
  CodecSpec changed = *this;
  const std::size_t i = find_option(info(), option);
  changed.values_.at(i) = find_value(info(), info().options[i], value);
  return changed;
}

std::string CodecSpec::text() const {
  std::string text(name());
  char separator = ':';
  for (std::size_t i = 0; i < info().options.size(); ++i) {
    const CodecOption& option = info().options[i];
    if (values_.at(i) == option.default_value) continue;
    text += fmt::format("{}{}={}", separator, option.name, option.values[values_.at(i)]);
    separator = ',';
  }
  return text;
}

std::optional<CodecSpec> find_cast_codec(DType to) {
  for (const std::string_view name : codec_names())
    if (make_codec(name)->cast_type() == to) return name;
  return std::nullopt;
}

CodecSpec cast_codec(DType to) {
  if (const auto found = find_cast_codec(to)) return *found;
  throw Error(Errc::usage, fmt::format("no codec casts to {}", traits(to).name));
}

std::unique_ptr<const Codec> make_codec(const CodecSpec& spec) {
  return registered_codecs.at(find_codec(spec.name()))->make(spec);
}

}  // namespace nibble
