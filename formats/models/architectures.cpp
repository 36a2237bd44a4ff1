// The look-up in the line of a model: from a stored name to the parameter it is loaded into, and from that to the
// pattern that says what becomes of it. One file, because a pattern can only be found by the name that loading gives a
// tensor, and loading only knows the names in the patterns.
//
// A stored name is resolved as in transformers 5.23 when it loads: renames in turn, at most one merge, then
// base_model_prefix added or removed. Renames are regular expressions, dozens for some models, and a model of experts
// has 100,000 names; so they run once per kind of name (numbers between dots do not count), on a probe whose numbers
// are replaced by markers. Roles are then found by hashing the name without its numbers.

#include "formats/models/architectures.hpp"

#include <fmt/format.h>
#include <re2/re2.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <memory>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "formats/models/architecture_line.hpp"
#include "formats/models/weight_name.hpp"
#include "nibble/error.hpp"

namespace nibble {
namespace {

using Numbers = std::vector<std::uint64_t>;

// Stands for a number in keys. Names are UTF-8, which never has this byte; a name may have a `*` of its own.
constexpr char number_slot = '\xff';
constexpr std::uint64_t any_number = ~std::uint64_t{0};   // `*` in a pattern
constexpr std::uint64_t largest_number = any_number - 1;  // `$`: the largest in the file

bool is_number(std::string_view part) {
  return !part.empty() && part.size() <= 9 &&
         std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
}

std::uint64_t to_number(std::string_view digits) {
  std::uint64_t value = 0;
  for (const char c : digits) value = 10 * value + static_cast<std::uint64_t>(c - '0');
  return value;
}

// A name cut at its numbers: "h.10.w" is the key "h.#.w" and the number 10, where # is number_slot.
struct Name {
  std::string key;
  Numbers numbers;
};

// Calls visit(part, is_first) for the texts between the dots.
template <class Visit> void for_each_part(std::string_view name, Visit&& visit) {
  for (std::size_t begin = 0;;) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    visit(name.substr(begin, end - begin), begin == 0);
    if (end == name.size()) return;
    begin = end + 1;
  }
}

// `number_of` is the number that a part stands for, if any.
template <class NumberOf> Name cut(std::string_view name, NumberOf&& number_of) {
  Name result;
  for_each_part(name, [&](std::string_view part, bool is_first) {
    if (!is_first) result.key += '.';
    if (const std::optional<std::uint64_t> number = number_of(part)) {
      result.key += number_slot;
      result.numbers.push_back(*number);
    } else {
      result.key += part;
    }
  });
  return result;
}

Name cut_name(std::string_view name) {
  return cut(name,
             [](std::string_view part) { return is_number(part) ? std::optional(to_number(part)) : std::nullopt; });
}

// A pattern of the table, where `*` is any number and `$` the largest in the file.
Name cut_pattern(std::string_view pattern) {
  return cut(pattern, [](std::string_view part) {
    return part == "*"       ? std::optional(any_number)
           : part == "$"     ? std::optional(largest_number)
           : is_number(part) ? std::optional(to_number(part))
                             : std::nullopt;
  });
}

// One pattern of the table, with its numbers in the order of the pattern.
struct Entry : RolePattern {
  Numbers numbers;
  std::optional<Why> why_tied;  // set: with tied embeddings the role is `kept`, for this reason
};

// A NameRule, compiled.
struct Transform {
  std::unique_ptr<const RE2> from;
  std::vector<std::string> to;
  std::unique_ptr<const RE2> unless;
  std::unique_ptr<const RE2> when;
  std::optional<std::string> scope;
};

std::unique_ptr<const RE2> compile(const std::optional<std::string>& text) {
  if (!text) return nullptr;
  auto regex = std::make_unique<RE2>(*text, RE2::Quiet);
  if (!regex->ok()) throw Error(Errc::internal, fmt::format("architectures.jsonl: {}", regex->error()));
  return regex;
}

std::vector<Transform> compile(const std::vector<NameRule>& rules) {
  std::vector<Transform> result;
  result.reserve(rules.size());
  for (const NameRule& rule : rules)
    result.push_back({compile(rule.from), rule.to, compile(rule.unless), compile(rule.when), rule.scope});
  return result;
}

// Finds a name that any of these expressions finds; null if there are none. A `*` in them is any text.
std::unique_ptr<const RE2> compile_any(const std::vector<std::string>& expressions) {
  if (expressions.empty()) return nullptr;
  std::string all = fmt::format("{}", fmt::join(expressions, "|"));
  for (std::size_t i = all.find('*'); i != std::string::npos; i = all.find('*', i + 2)) all.insert(i, 1, '.');
  return compile(std::optional(std::move(all)));
}

// The parameters into which a stored tensor is loaded.
struct Destination {
  std::string parameter;
  bool merged = false;               // through a merge or split
  std::vector<std::string> targets;  // of that: the parameters
  bool companions_follow = true;     // LoadingRules::companions end beside it
};

// The line of a model, made ready for look-ups.
class Architecture {
 public:
  explicit Architecture(const ArchitectureLine& line) : prefix_(line.prefix) {
    for (const RolePattern& pattern : line.patterns) add(pattern);
    settle_tied(line.tied);
    for (const auto& [key, entries] : by_key_) for_each_parent(key, [&](auto parent) { parents_.emplace(parent); });
    renames_ = compile(line.renames);
    merges_ = compile(line.merges);
    fp32_ = compile_any(line.fp32);
    fp32_strict_ = compile_any(line.fp32_strict);
    for (const std::vector<NameRule>* rules : {&line.renames, &line.merges})
      for (const NameRule& rule : *rules) note_numbers(rule);
  }

  [[nodiscard]] const std::vector<Entry>& entries() const noexcept { return entries_; }

  // Of parameters whose names do not end in "weight", loading casts those of a quantized directory, too.
  [[nodiscard]] KeptInFp32 kept_in_fp32(const std::string& parameter) const {
    if (!parameter.ends_with("weight")) return KeptInFp32::never;
    const auto finds = [&](const std::unique_ptr<const RE2>& regex) {
      return regex != nullptr && RE2::PartialMatch(parameter, *regex);
    };
    return finds(fp32_strict_) ? KeptInFp32::in_16_bits : finds(fp32_) ? KeptInFp32::in_fp16 : KeptInFp32::never;
  }

  // Decides which conditional renames apply to a file.
  void see(const TensorList& tensors) {
    std::erase_if(renames_, [&](const Transform& rename) {
      if (!rename.when) return false;
      for (std::size_t i = 0; i < tensors.size(); ++i)
        if (const std::string_view name = tensors.name(i);
            RE2::PartialMatch(re2::StringPiece(name.data(), name.size()), *rename.when))
          return false;
      return true;
    });
  }

  // The list of layers that an unknown module is in, if the table knows no such list: "tower.layer" of
  // "tower.layer.0.query". A model of several parts may have another one in that place than the table, and the names of
  // its modules may not be those in the file.
  [[nodiscard]] std::optional<std::string> unknown_layers(const std::string& module) const {
    std::string_view unknown;
    for_each_parent(module, [&](std::string_view parent) {
      if (unknown.empty() && !parents_.contains(cut_name(parent).key)) unknown = parent;
    });
    const std::string_view below = std::string_view(module).substr(unknown.empty() ? 0 : unknown.size() + 1);
    if (unknown.empty() || !is_number(below.substr(0, below.find('.')))) return std::nullopt;
    return std::string(unknown);
  }

  [[nodiscard]] Destination destination(std::string_view stored, const LoadingRules& rules) {
    if (stored.find(marker_digits) != std::string_view::npos) return route(std::string(stored), rules);
    // The probe: numbers that no rename mentions are replaced by markers; the rest distinguishes kinds of names.
    std::string kind;
    std::string probe;
    std::vector<std::string_view> numbers;
    for_each_part(stored, [&](std::string_view part, bool is_first) {
      if (!is_first) kind += '.', probe += '.';
      if (is_number(part) && numbers.size() < max_markers && !spoken_.contains(std::string(part))) {
        kind += number_slot;
        probe += std::to_string(marker + numbers.size());
        numbers.push_back(part);
      } else {
        kind += part;
        probe += part;
      }
    });
    auto found = destinations_.find(kind);
    if (found == destinations_.end()) found = destinations_.emplace(kind, route(probe, rules)).first;
    Destination result = found->second;
    put_back(result.parameter, numbers);
    for (std::string& target : result.targets) put_back(target, numbers);
    return result;
  }

  // The entry for a parameter, given the largest numbers that the file has under its key.
  [[nodiscard]] const Entry* entry(const Name& name, const Numbers& largest) const {
    const auto found = by_key_.find(name.key);
    if (found == by_key_.end()) return nullptr;
    const Entry* best = nullptr;
    std::ptrdiff_t best_fixed = -1;
    for (const std::size_t e : found->second) {
      const Entry& candidate = entries_[e];
      bool fits = true;
      for (std::size_t i = 0; i < name.numbers.size() && fits; ++i) {
        const std::uint64_t number = candidate.numbers[i];
        fits = number == any_number || (number == largest_number ? name.numbers == largest : number == name.numbers[i]);
      }
      const auto fixed = std::count_if(candidate.numbers.begin(), candidate.numbers.end(),
                                       [](std::uint64_t number) { return number != any_number; });
      if (fits && fixed > best_fixed) best = &candidate, best_fixed = fixed;
    }
    return best;
  }

 private:
  // Calls visit(module) for the modules around a module or parameter, the outermost first: "a" and "a.b" of "a.b.c".
  template <class Visit> static void for_each_parent(std::string_view name, Visit&& visit) {
    for (std::size_t dot = name.find('.'); dot != std::string_view::npos; dot = name.find('.', dot + 1))
      visit(name.substr(0, dot));
  }

  static constexpr std::uint64_t marker = 900'000'000;         // above any number of layers or experts
  static constexpr std::size_t max_markers = 1000;             // 900000000, 900000001, ..., 900000999
  static constexpr std::string_view marker_digits = "900000";  // a name that has them could be taken for a probe

  void add(const RolePattern& pattern) {
    const bool is_module = pattern.role != Role::expert && pattern.role != Role::other;
    Name name = cut_pattern(is_module ? pattern.pattern + ".weight" : pattern.pattern);
    by_key_[name.key].push_back(entries_.size());
    entries_.push_back({pattern, std::move(name.numbers), {}});
  }

  // Marks the parameters that are kept only with tied embeddings. Called when all entries are there: a line and its
  // base may each have a part of it.
  void settle_tied(const std::vector<std::pair<std::string, Why>>& tied) {
    for (const auto& [pattern, why] : tied) {
      const auto found = std::find_if(entries_.begin(), entries_.end(),
                                      [&name = pattern](const Entry& entry) { return entry.pattern == name; });
      if (found != entries_.end()) {
        found->why_tied = why;
        continue;
      }
      // a `$` that only the tied model has: untied, the role is that of the pattern with `*`
      Name name = cut_pattern(pattern + ".weight");
      const Entry* general = entry({name.key, Numbers(name.numbers.size(), marker)}, {});
      if (general == nullptr) continue;
      Entry special{{pattern, general->role, general->why}, std::move(name.numbers), why};
      by_key_[name.key].push_back(entries_.size());
      entries_.push_back(std::move(special));
    }
  }

  void note_numbers(const NameRule& rule) {
    std::string digits;
    const auto note = [&](std::string_view text) {
      for (const char c : text)
        if (c >= '0' && c <= '9')
          digits += c;
        else if (!digits.empty())
          spoken_.insert(std::exchange(digits, {}));
      if (!digits.empty()) spoken_.insert(std::exchange(digits, {}));
    };
    note(rule.from);
    for (const std::string& to : rule.to) note(to);
    for (const auto* text : {&rule.unless, &rule.when, &rule.scope}) note(text->value_or(""));
  }

  static void put_back(std::string& text, const std::vector<std::string_view>& numbers) {
    for (std::size_t i = 0; i < numbers.size(); ++i)
      if (const std::string mark = std::to_string(marker + i); text.find(mark) != std::string::npos)
        text.replace(text.find(mark), mark.size(), numbers[i]);
  }

  [[nodiscard]] bool knows(std::string_view parameter) const { return by_key_.contains(cut_name(parameter).key); }

  // Replaces the first match of `transform` in `name`; false if there is none.
  bool apply(const Transform& transform, std::string& name) const {
    std::string_view seen = name;
    std::size_t skipped = 0;
    if (transform.scope) {
      const std::string scope = transform.scope->empty() ? "" : *transform.scope + '.';
      const std::string whole = (prefix_.empty() ? "" : prefix_ + '.') + scope;
      skipped = seen.starts_with(whole) ? whole.size() : seen.starts_with(scope) ? scope.size() : std::string::npos;
      if (skipped == std::string::npos) return false;
      seen.remove_prefix(skipped);
    }
    std::array<re2::StringPiece, 8> groups;
    const auto count = static_cast<std::size_t>(transform.from->NumberOfCapturingGroups()) + 1;
    const re2::StringPiece text(seen.data(), seen.size());
    const auto used = static_cast<int>(std::min(count, groups.size()));
    if (!transform.from->Match(text, 0, text.size(), RE2::UNANCHORED, groups.data(), used)) return false;
    if (transform.unless && RE2::PartialMatch(text, *transform.unless)) return false;
    std::string replacement = transform.to.front();
    if (const std::size_t reference = replacement.find("\\1"); reference != std::string::npos) {
      const auto group = std::find_if(groups.begin() + 1, groups.begin() + used,
                                      [](const re2::StringPiece& piece) { return piece.data() != nullptr; });
      replacement.replace(reference, 2, group == groups.begin() + used ? "" : group->as_string());
    }
    const std::string matched = groups[0].as_string();
    name.replace(name.find(matched, skipped), matched.size(), replacement);
    return true;
  }

  std::string renamed(std::string name) const {
    for (const Transform& rename : renames_) apply(rename, name);
    return name;
  }

  // Adds or removes base_model_prefix, whichever makes the name one of the model's.
  [[nodiscard]] std::string fit_prefix(const std::string& name) const {
    if (prefix_.empty()) return name;
    if (name.starts_with(prefix_) && name.size() > prefix_.size() + 1 && knows(name.substr(prefix_.size() + 1)))
      return name.substr(prefix_.size() + 1);
    if (std::string longer = prefix_ + '.' + name; knows(longer)) return longer;
    return name;
  }

  [[nodiscard]] Destination route(const std::string& stored, const LoadingRules& rules) const {
    Destination result;
    std::string name = renamed(stored);
    std::string before = name;
    const Transform* merge = nullptr;
    for (const Transform& candidate : merges_)
      if (apply(candidate, name)) {
        merge = &candidate;
        break;
      }
    name = fit_prefix(name);
    if (!knows(name) && knows(stored)) {
      name = fit_prefix(stored);
      before = stored;
      merge = nullptr;
    }
    if (merge != nullptr) {
      result.merged = true;
      for (const std::string& to : merge->to) {
        std::string target = name;
        if (const std::size_t at = target.find(merge->to.front()); at != std::string::npos)
          target.replace(at, merge->to.front().size(), to);
        result.targets.push_back(std::move(target));
      }
    } else if (stored.ends_with(weight_suffix) && rules.companions) {
      const auto ends_as = [&](const std::string& companion, const std::string& expected) {
        std::string found = renamed(companion);
        if (std::any_of(merges_.begin(), merges_.end(), [&](const Transform& m) { return apply(m, found); }))
          return false;
        return found == expected;
      };
      result.companions_follow = std::ranges::equal(rules.companions(stored), rules.companions(before), ends_as);
    }
    result.parameter = std::move(name);
    return result;
  }

  std::string prefix_;
  std::vector<Transform> renames_;
  std::vector<Transform> merges_;
  std::unique_ptr<const RE2> fp32_, fp32_strict_;
  std::vector<Entry> entries_;
  std::unordered_map<std::string, std::vector<std::size_t>> by_key_;
  std::unordered_set<std::string> parents_;  // keys of modules that have entries below them
  std::unordered_set<std::string> spoken_;   // numbers that renames mention
  std::unordered_map<std::string, Destination> destinations_;
};

bool is_linear_layer(Role role) {
  return role == Role::linear || role == Role::conv1d || role == Role::output_embeddings || role == Role::kept;
}

// Linear layers that are never quantized, and that transformers leaves as they are. Not every loader does
// (LoadingRules).
bool is_special(Why why) {
  return why == Why::not_exactly_linear || why == Why::kept_in_fp32 || why == Why::shared_module;
}

FoundRole unknown_role(const TensorInfo& tensor, const Destination& to, const Architecture& table,
                       const LoadingRules& rules) {
  FoundRole result{Role::unknown, module_of(to.parameter), "unknown to the table of this architecture", {}};
  if (!is_matrix_weight(tensor)) return result;
  result.keeps = {result.module};
  // For loaders that take the name of a module for all modules below it.
  if (auto layers = table.unknown_layers(result.module); layers && !rules.replaces_every_linear)
    result.keeps.push_back(*std::move(layers));
  return result;
}

FoundRole role_of(const TensorInfo& tensor, const Destination& to, const Entry& entry, bool tied,
                  const LoadingRules& rules) {
  FoundRole result{entry.role, module_of(to.parameter), "", {}};
  Why why = entry.why;
  result.why = text_of(why);
  if (!is_linear_layer(entry.role)) {
    if (entry.role != Role::embedding) result.module = to.parameter;
    return result;
  }
  if (tied && entry.why_tied) {
    result.role = Role::kept;
    why = *entry.why_tied;
    result.why = text_of(why);
  }
  result.is_linear = true;
  result.used_outside = why == Why::used_outside;
  if (!is_special(why) || rules.replaces_every_linear) result.keeps = {result.module};
  if (is_special(why) || result.used_outside) {
    result.role = Role::other;
    return result;
  }
  // A tensor that two modules share cannot be quantized in one of them.
  if (why == Why::tied_weights) result.role = Role::other;
  if (!is_matrix_weight(tensor)) {
    result.role = Role::other;
    result.why = "linear layer whose weight is not stored as a matrix of floating-point numbers";
  } else if (!to.companions_follow) {
    result.role = Role::other;
    result.why = "linear layer that is renamed by its whole name when it is loaded";
  } else if (rules.companions && !rules.replaces_every_linear && result.module.ends_with("weight")) {
    result.role = Role::other;
    result.why = "linear layer whose name ends in 'weight', which transformers takes for the end of its tensors' names";
  }
  return result;
}

class TableRoleFinder final : public RoleFinder {
 public:
  TableRoleFinder(Architecture table, const TensorList& tensors, bool tied, LoadingRules rules)
      : table_(std::move(table)), tied_(tied), rules_(std::move(rules)) {
    table_.see(tensors);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const std::string_view stored = tensors.name(i);
      Name name =
          cut_name(tensors.shape(i).size() < 2 ? std::string(stored) : table_.destination(stored, rules_).parameter);
      Numbers& most = largest_[name.key];
      most = std::max(most, name.numbers);
    }
  }

  FoundRole find(const TensorInfo& tensor) override {
    const bool is_matrix = tensor.shape.size() > 1;
    const Destination to = table_.destination(tensor.name, rules_);
    FoundRole found = is_matrix ? find(tensor, to) : FoundRole{Role::other, to.parameter, "not a matrix", {}};
    found.kept_in_fp32 = table_.kept_in_fp32(to.parameter);
    return found;
  }

 private:
  FoundRole find(const TensorInfo& tensor, const Destination& to) {
    const Name name = cut_name(to.parameter);
    const Entry* entry = table_.entry(name, largest_[name.key]);
    if (!to.merged && entry == nullptr) return unknown_role(tensor, to, table_, rules_);
    if (!to.merged) return role_of(tensor, to, *entry, tied_, rules_);
    const bool expert = entry != nullptr && entry->role == Role::expert;
    FoundRole found{
        expert ? Role::expert : Role::other,
        to.parameter,
        expert ? "experts that are merged into one parameter when they are loaded" : "converted when it is loaded",
        {}};
    for (const std::string& target : to.targets) {
      const Entry* filled = table_.entry(cut_name(target), {});
      if (filled != nullptr && is_linear_layer(filled->role) &&
          (!is_special(filled->why) || rules_.replaces_every_linear))
        found.keeps.push_back(module_of(target));
    }
    return found;
  }

  Architecture table_;
  bool tied_;
  LoadingRules rules_;
  std::unordered_map<std::string, Numbers> largest_;  // by key, of all tensors
};

// A pattern of modules as a regular expression. Its dots match anything, as they do in the lists of other programs.
std::string as_expression(const std::string& pattern) {
  std::string result;
  for_each_part(pattern, [&](std::string_view part, bool is_first) {
    if (!is_first) result += '.';
    if (part == "*" || part == "$")
      result += "[0-9]+";
    else
      result += part;
  });
  return result;
}

}  // namespace

std::string module_of(std::string_view name) { return std::string(without_weight_suffix(name)); }

bool is_matrix_weight(const TensorInfo& tensor) {
  return tensor.shape.size() == 2 && is_weight_type(tensor.dtype) && tensor.name.ends_with(weight_suffix);
}

std::string loading_obstacle(const ModelClass& model) {
  const auto line = find_architecture_line(model);
  return line ? line->blocker : std::string();
}

bool splits_tensors(const ModelClass& model) {
  const auto line = find_architecture_line(model);
  return line && std::ranges::any_of(line->merges, [](const NameRule& merge) { return merge.to.size() > 1; });
}

EmbeddingLayers embedding_layers(const ModelClass& model) {
  EmbeddingLayers layers;
  const auto line = find_architecture_line(model);
  if (!line) return layers;
  const Architecture table(*line);
  for (const Entry& entry : table.entries()) {
    if (entry.why_tied) layers.tied.push_back(entry.pattern);
    if (entry.role == Role::embedding && entry.numbers.empty()) layers.embeddings.push_back(entry.pattern);
  }
  return layers;
}

bool has_other_parts(const ModelClass& model) {
  const auto line = find_architecture_line(model);
  return line && line->has_other_parts;
}

std::unique_ptr<RoleFinder> make_role_finder(const ModelClass& model, const TensorList& tensors, bool tied,
                                             LoadingRules rules) {
  const auto line = find_architecture_line(model);
  return line ? std::make_unique<TableRoleFinder>(Architecture(*line), tensors, tied, std::move(rules)) : nullptr;
}

std::optional<std::vector<DefaultSkip>> default_skips(const ModelClass& model, bool tied) {
  const auto line = find_architecture_line(model);
  if (!line) return std::nullopt;
  const Architecture table(*line);
  std::vector<DefaultSkip> result;
  for (const Entry& entry : table.entries()) {
    const bool by_tie = tied && entry.why_tied;
    if (!by_tie && entry.role != Role::kept && entry.role != Role::output_embeddings) continue;
    const Why why = by_tie ? *entry.why_tied : entry.why;
    const bool numbered = !entry.numbers.empty();
    if (is_special(why) || (numbered && why != Why::tied_weights)) continue;
    result.push_back({as_expression(entry.pattern), numbered});
  }
  return result;
}

}  // namespace nibble
