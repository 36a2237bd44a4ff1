#include "formats/models/architecture_line.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "nibble/error.hpp"

namespace nibble {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 12> why_texts{
    "linear layer",          "Conv1D layer",      "embedding",      "fused experts",
    "not a linear layer",    "output embeddings", "last parameter", "kept in fp32",
    "not exactly nn.Linear", "shared module",     "tied weights",   "weight used outside the layer"};

Why why_of(std::string_view text) {
  const auto found = std::find(why_texts.begin(), why_texts.end(), text);
  if (found == why_texts.end()) throw Error(Errc::internal, fmt::format("architectures.jsonl: no reason '{}'", text));
  return static_cast<Why>(found - why_texts.begin());
}

// The line with this name under its first key. It is found by text, so that the other lines need not be parsed.
std::optional<Json> find_json(std::string_view first_key, std::string_view name) {
  const bool plain = !name.empty() && std::all_of(name.begin(), name.end(),
                                                  [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
  if (!plain) return std::nullopt;
  const std::size_t begin = architectures_jsonl.find(fmt::format("{{\"{}\":\"{}\",", first_key, name));
  if (begin == std::string_view::npos) return std::nullopt;
  return Json::parse(architectures_jsonl.substr(begin, architectures_jsonl.find('\n', begin) - begin));
}

std::optional<Json> find_class(std::string_view name) {
  std::optional<Json> line = find_json("architecture", name);
  return line && line->contains("same_as") ? find_class(line->at("same_as").get<std::string>()) : line;
}

// A line that the table refers to.
Json referred(std::optional<Json> line, const Json& name) {
  if (!line) throw Error(Errc::internal, fmt::format("architectures.jsonl: no line {}", name.dump()));
  return *std::move(line);
}

// The name of a module that is called so below `at`.
std::string below(const std::string& at, const std::string& name) {
  return at.empty() ? name : name.empty() ? at : fmt::format("{}.{}", at, name);
}

// Whether a module is this one or below it.
bool is_below(std::string_view name, std::string_view at) {
  return at.empty() || (name.starts_with(at) && (name.size() == at.size() || name[at.size()] == '.'));
}

// "a.{b,c}" stands for a.b and a.c.
std::vector<std::string> expand(const std::string& text) {
  const std::size_t brace = text.find('{');
  if (brace == std::string::npos) return {text};
  std::vector<std::string> result;
  for (std::size_t begin = brace + 1; begin < text.size();) {
    const std::size_t end = text.find_first_of(",}", begin);
    result.push_back(text.substr(0, brace) + text.substr(begin, end - begin));
    begin = end + 1;
  }
  return result;
}

using Groups = std::unordered_set<std::string>;

// The patterns of a list in a line, as modules below `at`.
std::vector<std::string> members(const Json& groups, const std::string& at, const Groups& without) {
  std::vector<std::string> result;
  for (const Json& text : groups) {
    const std::string group = below(at, text.get<std::string>());
    if (without.contains(group)) continue;
    std::ranges::move(expand(group), std::back_inserter(result));
  }
  return result;
}

void add_patterns(ArchitectureLine& line, const Json& from, const std::string& at, const Groups& without) {
  const auto add = [&](const Json& groups, Role role, Why why) {
    for (std::string& pattern : members(groups, at, without)) line.patterns.push_back({std::move(pattern), role, why});
  };
  const auto add_list = [&](const char* key, Role role, Why why) {
    if (const auto found = from.find(key); found != from.end()) add(*found, role, why);
  };
  add_list("linear", Role::linear, Why::linear);
  add_list("conv1d", Role::conv1d, Why::conv1d);
  add_list("embedding", Role::embedding, Why::embedding);
  add_list("expert", Role::expert, Why::expert);
  add_list("other", Role::other, Why::other);
  const Json kept = from.value("kept", Json::object());
  for (const auto& [text, groups] : kept.items()) {
    const Why why = why_of(text);
    add(groups, why == Why::output_embeddings ? Role::output_embeddings : Role::kept, why);
  }
  const Json tied = from.value("tied", Json::object());
  for (const auto& [text, groups] : tied.items())
    for (std::string& pattern : members(groups, at, without)) line.tied.emplace_back(std::move(pattern), why_of(text));
}

std::vector<NameRule> rules_of(const Json& line, const char* key) {
  std::vector<NameRule> result;
  for (const Json& object : line.value(key, Json::array())) {
    const auto text = [&](const char* member) {
      const auto found = object.find(member);
      return found == object.end() ? std::nullopt : std::optional(found->get<std::string>());
    };
    const Json& to = object.at("to");
    result.push_back({object.at("from").get<std::string>(),
                      to.is_array() ? to.get<std::vector<std::string>>() : std::vector{to.get<std::string>()},
                      text("unless"), text("when"), text("scope")});
  }
  return result;
}

// The parameters that the line of a class, or its entry of a part, keeps in fp32.
void add_fp32(ArchitectureLine& line, const Json& from) {
  const auto add = [&](const char* key, std::vector<std::string>& to) {
    for (const Json& pattern : from.value(key, Json::array())) to.push_back(pattern.get<std::string>());
  };
  add("fp32", line.fp32);
  add("fp32_strict", line.fp32_strict);
}

// The line of a class with its default parts.
ArchitectureLine with_default_parts(const Json& json) {
  ArchitectureLine line;
  line.prefix = json.value("prefix", "");
  line.blocker = json.value("blocker", "");
  add_fp32(line, json);
  add_patterns(line, json, "", {});
  if (const auto base = json.find("base"); base != json.end()) {
    const auto without = json.value("without", std::vector<std::string>());
    add_patterns(line, referred(find_class(base->get<std::string>()), *base), json.value("at", ""),
                 {without.begin(), without.end()});
  }
  const auto loads_as = json.find("loads_as");
  const Json loading = loads_as == json.end() ? json : referred(find_class(loads_as->get<std::string>()), *loads_as);
  line.renames = rules_of(loading, "renames");
  line.merges = rules_of(loading, "merges");
  return line;
}

// The class that a part of this model_type is of. Nothing if no auto class knows the type.
std::optional<std::string> class_made(const Json& part, const std::string& model_type) {
  const Json made = part.value("made", Json::object());
  if (const auto found = made.find(model_type); found != made.end()) return found->get<std::string>();
  for (const Json& name : part.at("auto")) {
    const Json line = referred(find_json("auto", name.get<std::string>()), name);
    if (const auto found = line.at("classes").find(model_type); found != line.at("classes").end())
      return found->get<std::string>();
  }
  return std::nullopt;
}

// A module as the scopes of this line's rules name it.
std::string as_scope(const ArchitectureLine& line, const std::string& at) {
  if (line.prefix.empty() || !is_below(at, line.prefix)) return at;
  return at.size() == line.prefix.size() ? "" : at.substr(line.prefix.size() + 1);
}

void remove(ArchitectureLine& line, const std::string& at) {
  std::erase_if(line.patterns, [&](const RolePattern& entry) { return is_below(entry.pattern, at); });
  std::erase_if(line.tied, [&](const auto& entry) { return is_below(entry.first, at); });
  const std::string scope = as_scope(line, at);
  for (std::vector<NameRule>* rules : {&line.renames, &line.merges})
    std::erase_if(*rules, [&](const NameRule& rule) { return rule.scope && is_below(*rule.scope, scope); });
}

// `is_last`: whether the last parameter of the whole model is in this part.
void insert(ArchitectureLine& line, ArchitectureLine part, const std::string& at, bool is_last) {
  const auto has = [&](const std::string& module) {
    return std::ranges::any_of(part.patterns,
                               [&](const RolePattern& entry) { return is_below(entry.pattern, module); });
  };
  const auto insert_rules = [&](std::vector<NameRule>& rules, std::vector<NameRule>& own) {
    for (NameRule& rule : own) {
      std::string module = rule.scope.value_or("");
      if (const std::string whole = below(part.prefix, module); rule.scope && has(whole)) module = whole;
      rule.scope = as_scope(line, below(at, module));
      rules.push_back(std::move(rule));
    }
  };
  insert_rules(line.renames, part.renames);
  insert_rules(line.merges, part.merges);
  for (RolePattern& entry : part.patterns) {
    if (entry.why == Why::last_parameter && !is_last) entry.role = Role::linear, entry.why = Why::linear;
    line.patterns.push_back({below(at, entry.pattern), entry.role, entry.why});
  }
  for (auto& [pattern, why] : part.tied) line.tied.emplace_back(below(at, pattern), why);
  if (line.blocker.empty()) line.blocker = std::move(part.blocker);
  std::ranges::move(part.fp32, std::back_inserter(line.fp32));
  std::ranges::move(part.fp32_strict, std::back_inserter(line.fp32_strict));
}

// The types of the parts of a part.
std::map<std::string, std::string> types_below(const std::map<std::string, std::string>& types,
                                               const std::string& path) {
  std::map<std::string, std::string> result;
  for (const auto& [part, type] : types)
    if (part.size() > path.size() && is_below(part, path)) result.emplace(part.substr(path.size() + 1), type);
  return result;
}

// Puts in the parts that config.json names where the class has others by default. The outermost come first. A type that
// no auto class knows is most often another name of the default part's, which stays.
void settle_parts(ArchitectureLine& line, const Json& parts, const std::map<std::string, std::string>& types) {
  std::vector<std::string> settled;
  for (const Json& part : parts) {
    const auto at = part.at("at").get<std::string>(), path = part.at("config").get<std::string>();
    if (std::ranges::any_of(settled, [&](const auto& outer) { return is_below(at, outer); })) continue;
    const auto type = types.find(path);
    const auto made = type == types.end() ? std::nullopt : class_made(part, type->second);
    const bool is_default = made == part.at("class").get<std::string>();
    if (type != types.end() && !is_default) line.has_other_parts = true;
    if (!made || is_default) {
      add_fp32(line, part);
      continue;
    }
    remove(line, at);
    settled.push_back(at);
    if (auto found = find_architecture_line({*made, types_below(types, path)}))
      insert(line, *std::move(found), at, part.value("last", false));
  }
}

}  // namespace

std::string architectures_version() {
  const std::string_view line = architectures_jsonl.substr(0, architectures_jsonl.find('\n'));
  return Json::parse(line).at("transformers").get<std::string>();
}

std::string text_of(Why why) { return std::string(why_texts.at(static_cast<std::size_t>(why))); }

std::optional<ArchitectureLine> find_architecture_line(const ModelClass& model) {
  const std::optional<Json> json = find_class(model.architecture);
  if (!json) return std::nullopt;
  ArchitectureLine line = with_default_parts(*json);
  settle_parts(line, json->value("parts", Json::array()), model.part_types);
  return line;
}

}  // namespace nibble
