#include "quant/schemes/bitsandbytes_skips.hpp"

#include <fmt/format.h>
#include <re2/re2.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <unordered_set>

#include "formats/models/architectures.hpp"
#include "nibble/error.hpp"

namespace nibble {
namespace {

bool is_plain_entry(std::string_view entry) {
  return std::all_of(entry.begin(), entry.end(),
                     [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '.' || c == '-'; });
}

// Matches only this module; every character of its name is taken literally.
std::string exactly(const std::string& module) { return fmt::format("^{}$", RE2::QuoteMeta(module)); }

}  // namespace

bool skips(std::string_view entry, std::string_view module) {
  if (module.ends_with(entry)) return true;
  if (is_plain_entry(entry)) {
    // Without special characters only a dot, which matches anything, sets a regular expression apart from text.
    if (entry.size() > module.size()) return false;
    for (std::size_t i = 0; i < entry.size(); ++i)
      if (entry[i] != '.' && entry[i] != module[i]) return false;
    return entry.empty() || entry.size() == module.size() || module[entry.size()] == '.' ||
           module[entry.size() - 1] == '.';
  }
  const RE2 regex(re2::StringPiece(entry.data(), entry.size()), RE2::Quiet);
  if (!regex.ok())
    throw Error(Errc::usage, fmt::format("skipped module '{}': {}", printable(entry), printable(regex.error())));
  // A match counts if it ends before a dot, behind one, or with the name.
  for (std::size_t end = 0; end <= module.size(); ++end) {
    const bool boundary = end == module.size() || module[end] == '.' || (end > 0 && module[end - 1] == '.');
    // `$` inside the entry means the end of the name, not of the part that is tried
    if (!boundary) continue;
    const re2::StringPiece text(module.data(), module.size());
    const re2::StringPiece part(module.data(), end);
    if (entry.find('$') == std::string_view::npos ? RE2::FullMatch(part, regex)
                                                  : end == module.size() && RE2::FullMatch(text, regex))
      return true;
  }
  return false;
}

std::vector<std::string> skip_list(std::string_view architecture, bool tied, std::span<const std::string> quantized,
                                   std::span<const std::string> plain) {
  std::vector<std::string> result;
  std::unordered_set<std::string_view> listed(quantized.begin(), quantized.end());
  const auto harmless = [&](const std::string& entry) {
    return std::none_of(quantized.begin(), quantized.end(),
                        [&](const std::string& module) { return skips(entry, module); });
  };
  for (const std::string& module : plain) {
    if (!listed.insert(module).second) continue;
    // Entries are regular expressions: "up[proj" is none, and "a|b" is another.
    result.push_back(is_plain_entry(module) && harmless(module) ? module : exactly(module));
  }

  // Modules that the default keeps but the file lacks. Numbered ones may be missing in part: those that are tied.
  const auto defaults = default_skips(architecture, tied);
  if (!defaults) {
    if (!listed.contains("lm_head") && harmless("lm_head")) result.emplace_back("lm_head");
    return result;
  }
  std::unordered_set<std::string_view> seen;
  for (const auto& [entry, numbered] : *defaults) {
    if (listed.contains(entry) || !seen.insert(entry).second) continue;
    if (harmless(entry))
      result.push_back(entry);
    else if (!numbered)
      result.push_back(exactly(entry));
  }
  return result;
}

}  // namespace nibble
