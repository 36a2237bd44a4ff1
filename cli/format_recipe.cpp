#include "cli/format_recipe.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <string_view>

#include "nibble/codec.hpp"
#include "nibble/error.hpp"

namespace nibble::cli {

Recipe parse_format(const std::string& text) {
  const auto fail = [&](std::string_view fact) {
    throw Error(Errc::usage, fmt::format("--to '{}': {}", printable(text), fact));
  };
  Recipe recipe;
  const std::size_t colon = std::min(text.find(':'), text.size());
  recipe.to = text.substr(0, colon);
  for (std::size_t begin = colon + 1; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view option = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    const std::size_t equals = std::min(option.find('='), option.size());
    const std::string_view key = option.substr(0, equals);
    const std::string_view value = option.substr(std::min(equals + 1, option.size()));
    if (key == "block-size") {
      const auto [last, error] = std::from_chars(value.data(), value.data() + value.size(), recipe.options.blocksize);
      if (error != std::errc() || last != value.data() + value.size()) fail("block-size is not a number");
    } else if (key == "double-quant") {
      if (value != "yes" && value != "no") fail("double-quant is neither yes nor no");
      recipe.options.double_quant = value == "yes";
    } else {
      fail("the options are block-size=N and double-quant=yes|no");
    }
  }
  std::unique_ptr<const Codec> codec;
  try {
    codec = make_codec(recipe.to, recipe.options);
  } catch (const Error& error) {
    fail(error.what());
  }
  if (colon < text.size() && codec->granularity() != Granularity::block) fail("only 4-bit codecs have options");
  recipe.nonfinite = Nonfinite::keep;
  recipe.on_overflow = OnOverflow::keep;  // an infinity shows in the figures
  return recipe;
}

std::string convert_options(const Recipe& recipe) {
  const Recipe defaults;
  std::string options = "--to " + recipe.to;
  if (recipe.options.blocksize != defaults.options.blocksize)
    options += fmt::format(" --block-size {}", recipe.options.blocksize);
  if (recipe.options.double_quant != defaults.options.double_quant) options += " --no-double-quant";
  return options;
}

}  // namespace nibble::cli
