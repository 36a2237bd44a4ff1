#include "quant/schemes/bitsandbytes_skips.hpp"

#include <fmt/format.h>
#include <re2/re2.h>

#include <algorithm>
#include <cctype>
#include <memory>
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

// An entry of the list, its regular expression compiled once for all modules.
class Entry {
 public:
  // Throws Error(usage) if it is no regular expression that RE2 reads.
  explicit Entry(std::string_view text) : text_(text) {
    if (is_plain_entry(text)) return;
    regex_ = std::make_unique<RE2>(re2::StringPiece(text.data(), text.size()), RE2::Quiet);
    if (!regex_->ok())
      throw Error(Errc::usage, fmt::format("skipped module '{}': {}", printable(text), printable(regex_->error())));
  }

  [[nodiscard]] bool skips(std::string_view module) const {
    if (module.ends_with(text_)) return true;
    return regex_ == nullptr ? plain_skips(module) : regex_skips(module);
  }

 private:
  // Without special characters, a regular expression differs from text only in that a dot matches anything.
  [[nodiscard]] bool plain_skips(std::string_view module) const {
    if (text_.size() > module.size()) return false;
    for (std::size_t i = 0; i < text_.size(); ++i)
      if (text_[i] != '.' && text_[i] != module[i]) return false;
    return text_.empty() || text_.size() == module.size() || module[text_.size()] == '.' ||
           module[text_.size() - 1] == '.';
  }

  // A match counts if it ends just before a dot, just after one, or with the name.
  [[nodiscard]] bool regex_skips(std::string_view module) const {
    for (std::size_t end = 0; end <= module.size(); ++end) {
      const bool boundary = end == module.size() || module[end] == '.' || (end > 0 && module[end - 1] == '.');
      // `$` inside the entry means the end of the name, not of the part that is tried
      if (!boundary || (end < module.size() && text_.find('$') != std::string_view::npos)) continue;
      if (RE2::FullMatch(re2::StringPiece(module.data(), end), *regex_)) return true;
    }
    return false;
  }

  std::string_view text_;
  std::unique_ptr<const RE2> regex_;  // null for plain entries
};

// Finds out whether an entry skips any of these modules, in about log n steps if the entry is plain. Entry::skips() for
// each module in turn would take minutes for the 35,000 experts of a large model if as many stay plain.
class Modules {
 public:
  explicit Modules(std::span<const std::string> modules) : sorted_(modules.begin(), modules.end()) {
    reversed_.reserve(sorted_.size());
    for (const std::string_view module : sorted_) reversed_.emplace_back(module.rbegin(), module.rend());
    std::ranges::sort(sorted_);
    std::ranges::sort(reversed_);
  }

  [[nodiscard]] bool has_skipped(std::string_view text) const {
    if (!is_plain_entry(text)) {
      const Entry entry(text);
      return std::ranges::any_of(sorted_, [&](std::string_view module) { return entry.skips(module); });
    }
    const std::string suffix(text.rbegin(), text.rend());
    const auto found = std::ranges::lower_bound(reversed_, suffix);
    return (found != reversed_.end() && found->starts_with(suffix)) || begins_one(text);
  }

 private:
  using Range = std::span<const std::string_view>;

  // The part of `modules` that have `next` at `at`. All of them agree in the characters before.
  static Range with(Range modules, std::size_t at, std::string_view next) {
    const auto part = [&](std::string_view module) { return module.substr(at, next.size()); };
    return {std::ranges::lower_bound(modules, next, {}, part), std::ranges::upper_bound(modules, next, {}, part)};
  }

  // Whether an entry begins one of them, up to the end of a component. A dot matches any character: each that occurs is
  // tried in turn. In the names of a model, few do.
  [[nodiscard]] bool begins_one(std::string_view entry) const {
    struct Step {
      Range modules;   // that match the entry
      std::size_t at;  // up to here
    };
    std::vector<Step> steps{{sorted_, 0}};
    while (!steps.empty()) {
      auto [modules, at] = steps.back();
      steps.pop_back();
      const std::size_t dot = std::min(entry.find('.', at), entry.size());
      modules = with(modules, at, entry.substr(at, dot - at));
      if (modules.empty()) continue;
      const std::string_view shortest = modules.front();
      if (dot == entry.size()) {
        if (shortest.size() == dot || (dot > 0 && shortest[dot - 1] == '.') || !with(modules, dot, ".").empty())
          return true;
        continue;
      }
      while (!modules.empty() && modules.front().size() == dot) modules = modules.subspan(1);
      while (!modules.empty()) {
        const Range same = with(modules, dot, modules.front().substr(dot, 1));
        steps.push_back({same, dot + 1});
        modules = modules.subspan(same.size());
      }
    }
    return false;
  }

  std::vector<std::string_view> sorted_;
  std::vector<std::string> reversed_;  // so that a suffix is a prefix
};

}  // namespace

bool skips(std::string_view entry, std::string_view module) {
  return module.ends_with(entry) || Entry(entry).skips(module);
}

std::vector<std::string> skip_list(const ModelClass& model, bool tied, std::span<const std::string> quantized,
                                   std::span<const std::string> plain) {
  std::vector<std::string> result;
  std::unordered_set<std::string_view> listed(quantized.begin(), quantized.end());
  const Modules modules(quantized);
  const auto harmless = [&](const std::string& entry) { return !modules.has_skipped(entry); };
  for (const std::string& module : plain) {
    if (!listed.insert(module).second) continue;
    // Entries are regular expressions: "up[proj" is none, and "a|b" is another.
    result.push_back(is_plain_entry(module) && harmless(module) ? module : exactly(module));
  }

  // Modules that the default keeps but the file lacks. Numbered ones may be missing in part: those that are tied.
  const auto defaults = default_skips(model, tied);
  if (!defaults) {
    if (constexpr const char* head = "lm_head"; !listed.contains(head) && harmless(head)) result.emplace_back(head);
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
