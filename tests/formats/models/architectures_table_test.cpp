// All lines of architectures.jsonl: the look-up leaves out nothing that a line says. It would pass over an unknown key,
// a base of a base or a brace within a name in silence, so these are looked for in the text of the table. Every pattern
// is then asked for by the name of its tensor.

#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/models/architecture_line.hpp"
#include "formats/models/architectures.hpp"

namespace nibble::architectures_table_test {
namespace {

using Json = nlohmann::json;

// The key of a list of patterns, the reason in "kept" and "tied", and the patterns of the list.
struct List {
  std::string key, why;
  std::vector<std::string> groups;
};

const std::vector<Json>& lines() {
  static const std::vector<Json> all = [] {
    std::vector<Json> found;
    for (std::size_t begin = 0; begin < architectures_jsonl.size();) {
      const std::size_t end = std::min(architectures_jsonl.find('\n', begin), architectures_jsonl.size());
      found.push_back(Json::parse(architectures_jsonl.substr(begin, end - begin)));
      begin = end + 1;
    }
    return found;
  }();
  return all;
}

const std::map<std::string, Json>& architectures() {
  static const std::map<std::string, Json> all = [] {
    std::map<std::string, Json> found;
    for (std::size_t i = 1; i < lines().size(); ++i)
      if (!lines()[i].contains("auto")) found.emplace(lines()[i].at("architecture"), lines()[i]);
    return found;
  }();
  return all;
}

// What the auto classes make: {name: {model_type: class}}.
const std::map<std::string, std::map<std::string, std::string>>& auto_classes() {
  static const auto all = [] {
    std::map<std::string, std::map<std::string, std::string>> found;
    for (const Json& line : lines())
      if (line.contains("auto")) found.emplace(line.at("auto"), line.at("classes"));
    return found;
  }();
  return all;
}

std::vector<std::string> unknown_keys(const Json& object, std::initializer_list<std::string_view> known) {
  std::vector<std::string> unknown;
  for (const auto& [key, unused] : object.items())
    if (std::find(known.begin(), known.end(), key) == known.end()) unknown.push_back(key);
  return unknown;
}

std::vector<List> lists_of(const Json& line) {
  std::vector<List> lists;
  for (const char* key : {"linear", "conv1d", "embedding", "expert", "other"})
    if (line.contains(key)) lists.push_back({key, "", line.at(key)});
  for (const char* key : {"kept", "tied"})
    if (line.contains(key))
      for (const auto& [why, groups] : line.at(key).items()) lists.push_back({key, why, groups});
  return lists;
}

// The names that a group stands for: a.b and a.c for a.{b,c}.
std::vector<std::string> members(const std::string& group) {
  const std::size_t brace = group.find('{');
  if (brace == std::string::npos) return {group};
  std::vector<std::string> names;
  for (std::size_t begin = brace + 1; begin < group.size();) {
    const std::size_t end = std::min(group.find_first_of(",}", begin), group.size());
    names.push_back(group.substr(0, brace) + group.substr(begin, end - begin));
    begin = end + 1;
  }
  return names;
}

// One pattern of an architecture, its own or its base's.
struct Pattern {
  std::string name, key, why;
};

std::vector<Pattern> patterns_of(const Json& line) {
  std::vector<Pattern> patterns;
  const auto add = [&](const Json& from, const std::string& at, const std::set<std::string>& without) {
    for (const List& list : lists_of(from))
      for (const std::string& group : list.groups)
        if (!without.contains(at + group))
          for (const std::string& name : members(at + group)) patterns.push_back({name, list.key, list.why});
  };
  add(line, "", {});
  if (!line.contains("base")) return patterns;
  const std::string at = line.value("at", "");
  add(architectures().at(line.at("base")), at.empty() ? at : at + ".", line.value("without", std::set<std::string>()));
  return patterns;
}

TEST(ArchitecturesTable, HasALineForEachOfItsClasses) {
  EXPECT_EQ(architectures().size(), lines().front().at("classes").get<std::size_t>());
  EXPECT_EQ(architectures().size() + auto_classes().size(), lines().size() - 1)
      << "a class has two lines, of which one is never read";
  EXPECT_EQ(unknown_keys(lines().front(), {"transformers", "classes"}), std::vector<std::string>{});
}

TEST(ArchitecturesTable, HasNoKeysThatAreNotRead) {
  for (const auto& [name, line] : architectures()) {
    SCOPED_TRACE(name);
    const std::vector<std::string> none;
    if (line.contains("same_as")) {  // all else is read from that line
      EXPECT_EQ(unknown_keys(line, {"architecture", "same_as"}), none);
      continue;
    }
    EXPECT_EQ(unknown_keys(line, {"architecture", "prefix", "blocker", "fp32", "fp32_strict", "parts", "base", "at",
                                  "without", "linear", "conv1d", "kept", "tied", "embedding", "expert", "other",
                                  "renames", "merges", "loads_as"}),
              none);
    EXPECT_TRUE(line.contains("base") || !(line.contains("at") || line.contains("without")));
    EXPECT_FALSE(line.contains("loads_as") && (line.contains("renames") || line.contains("merges")));
    for (const Json& rename : line.value("renames", Json::array()))
      EXPECT_EQ(unknown_keys(rename, {"from", "to", "unless", "when", "scope"}), none);
    for (const Json& merge : line.value("merges", Json::array()))
      EXPECT_EQ(unknown_keys(merge, {"from", "to", "scope"}), none);
  }
}

// Parts are put in from the outermost to the innermost, by an auto class whose classes are known.
TEST(ArchitecturesTable, SaysOfEachPartWhatDecidesIt) {
  std::set<std::string> asked;
  for (const auto& [name, line] : architectures()) {
    std::set<std::string> modules;
    for (const Json& part : line.value("parts", Json::array())) {
      SCOPED_TRACE(name + " " + part.dump());
      EXPECT_EQ(unknown_keys(part, {"at", "config", "auto", "class", "made", "last", "fp32", "fp32_strict"}),
                std::vector<std::string>{});
      const std::string at = part.at("at");
      EXPECT_FALSE(at.empty() || part.at("config").get<std::string>().empty());
      for (const std::string& other : modules) EXPECT_FALSE(other.starts_with(at + ".")) << other << " comes first";
      EXPECT_TRUE(modules.insert(at).second);
      bool is_made = false;
      for (const std::string autos : part.at("auto")) {
        ASSERT_TRUE(auto_classes().contains(autos));
        asked.insert(autos);
        for (const auto& [type, made] : auto_classes().at(autos)) is_made |= made == part.at("class");
        for (const auto& [type, made] : part.value("made", std::map<std::string, std::string>()))
          is_made |= made == part.at("class");
      }
      EXPECT_TRUE(is_made) << "its default would be taken for another class";
    }
  }
  for (const auto& [autos, classes] : auto_classes()) EXPECT_TRUE(asked.contains(autos)) << autos << " is never read";
}

// What a line takes from another is that line's own: a reference is not followed to the end of a chain.
TEST(ArchitecturesTable, RefersOnlyToLinesThatReferNoFurther) {
  for (const auto& [name, line] : architectures())
    for (const char* reference : {"same_as", "base", "loads_as"}) {
      if (!line.contains(reference)) continue;
      SCOPED_TRACE(name + " " + reference);
      const auto found = architectures().find(line.at(reference));
      ASSERT_NE(found, architectures().end());
      EXPECT_FALSE(found->second.contains(reference));
      EXPECT_FALSE(found->second.contains("same_as"));
    }
}

TEST(ArchitecturesTable, LeavesOutOnlyGroupsThatItsBaseHas) {
  for (const auto& [name, line] : architectures()) {
    if (!line.contains("without")) continue;
    const std::string at = line.value("at", "");
    std::set<std::string> groups;
    for (const List& list : lists_of(architectures().at(line.at("base"))))
      for (const std::string& group : list.groups) groups.insert(at.empty() ? group : at + "." + group);
    for (const std::string group : line.at("without")) EXPECT_TRUE(groups.contains(group)) << name << ": " << group;
  }
}

// What follows a closing brace would be dropped.
TEST(ArchitecturesTable, HasBracesOnlyAtTheEndOfAGroup) {
  for (const auto& [name, line] : architectures())
    for (const List& list : lists_of(line))
      for (const std::string& group : list.groups) {
        const std::size_t open = group.find('{');
        EXPECT_EQ(group.find('{', open == std::string::npos ? open : open + 1), std::string::npos) << name << group;
        EXPECT_EQ(group.find('}'), open == std::string::npos ? open : group.size() - 1) << name << ": " << group;
      }
}

// Of the groups of an expression only the first that matched is put in, for \1, and seven are looked at. A rename has
// one new name: only a merge fills several parameters.
TEST(ArchitecturesTable, AsksForNoMoreThanRenamesCanDo) {
  for (const auto& [name, line] : architectures()) {
    SCOPED_TRACE(name);
    for (const Json& rename : line.value("renames", Json::array())) EXPECT_TRUE(rename.at("to").is_string()) << rename;
    for (const char* key : {"renames", "merges"})
      for (const Json& transform : line.value(key, Json::array())) {
        const std::string from = transform.at("from");
        std::size_t groups = 0;
        for (std::size_t i = from.find('('); i != std::string::npos; i = from.find('(', i + 1))
          groups += (i == 0 || from[i - 1] != '\\') && from.substr(i, 2) != "(?" ? 1 : 0;
        EXPECT_LE(groups, 7u) << from;
        for (const Json& to : transform.at("to").is_array() ? transform.at("to") : Json{transform.at("to")}) {
          const std::string text = to;
          const std::size_t reference = text.find('\\');
          EXPECT_TRUE(reference == std::string::npos || text.substr(reference, 2) == "\\1") << text;
          EXPECT_EQ(std::count(text.begin(), text.end(), '\\'), reference == std::string::npos ? 0 : 1) << text;
        }
      }
  }
}

TEST(ArchitecturesTable, ObstaclesAreThoseOfTheLines) {
  for (const auto& [name, line] : architectures()) {
    const Json& own = line.contains("same_as") ? architectures().at(line.at("same_as")) : line;
    EXPECT_EQ(loading_obstacle({name}), own.value("blocker", "")) << name;
  }
}

// A pattern as a stored name, with numbers that the table does not speak of.
std::string tensor_name(const Pattern& pattern) {
  std::string name = pattern.name;
  for (std::size_t i = name.find_first_of("*$"); i != std::string::npos; i = name.find_first_of("*$"))
    name.replace(i, 1, name[i] == '*' ? "770" : "880");
  return pattern.key == "expert" || pattern.key == "other" ? name : name + ".weight";
}

// What a finder should say about the tensor of a pattern.
struct Expected {
  Role role;
  std::string why;
};

Expected expected_of(const Pattern& pattern) {
  if (pattern.key == "linear") return {Role::linear, "linear layer"};
  if (pattern.key == "conv1d") return {Role::conv1d, "Conv1D layer"};
  if (pattern.key == "embedding") return {Role::embedding, "embedding"};
  if (pattern.key == "expert") return {Role::expert, "fused experts"};
  if (pattern.key == "other") return {Role::other, "not a linear layer"};
  if (pattern.why == "output embeddings") return {Role::output_embeddings, pattern.why};
  if (pattern.why == "last parameter") return {Role::kept, pattern.why};
  return {Role::other, pattern.why};  // no option would make transformers replace it
}

// Where a model loads its fused experts through a merge, the finder says so of them.
bool is_expected(const FoundRole& found, const Expected& expected) {
  const bool is_merged = found.role == Role::expert && found.why.starts_with("experts that are merged");
  return found.role == expected.role && (is_merged || found.why == expected.why);
}

// Each pattern that the look-up knows by another name, or does not know at all, would fail here. So would a reason that
// has no meaning to it, by an exception.
TEST(ArchitecturesTable, EveryPatternHasItsRoleAndReason) {
  for (const auto& [name, line] : architectures()) {
    if (line.contains("same_as")) continue;
    const std::vector<Pattern> patterns = patterns_of(line);
    std::vector<TensorInfo> tensors;
    for (const Pattern& pattern : patterns) tensors.push_back({tensor_name(pattern), DType::bf16, {64, 64}});
    const TensorList list{std::span<const TensorInfo>(tensors)};
    for (const bool tied : {false, true}) {
      std::map<std::string, Expected> expected;
      for (std::size_t i = 0; i < patterns.size(); ++i)
        if (patterns[i].key != "tied") expected.emplace(tensors[i].name, expected_of(patterns[i]));
      for (std::size_t i = 0; i < patterns.size() && tied; ++i)  // these count for more
        if (patterns[i].key == "tied") expected.insert_or_assign(tensors[i].name, expected_of(patterns[i]));
      const auto finder = make_role_finder({name}, list, tied);
      ASSERT_TRUE(finder) << name;
      for (const TensorInfo& tensor : tensors) {
        const auto wanted = expected.find(tensor.name);
        if (wanted == expected.end()) continue;  // only the tied model has it
        const FoundRole found = finder->find(tensor);
        EXPECT_TRUE(is_expected(found, wanted->second)) << name << (tied ? ", tied: " : ": ") << tensor.name
                                                        << " is not " << wanted->second.why << " but " << found.why;
      }
    }
  }
}

// Architectures that say that they are as others have their roles.
TEST(ArchitecturesTable, LinesThatAreThoseOfOthersAreFound) {
  for (const auto& [name, line] : architectures()) {
    if (!line.contains("same_as")) continue;
    const std::string other = line.at("same_as");
    for (const bool tied : {false, true}) {
      const auto own = default_skips({name}, tied), others = default_skips({other}, tied);
      ASSERT_TRUE(own && others) << name;
      EXPECT_TRUE(std::ranges::equal(*own, *others, {}, &DefaultSkip::pattern, &DefaultSkip::pattern)) << name;
    }
    EXPECT_EQ(splits_tensors({name}), splits_tensors({other})) << name;
  }
}

}  // namespace
}  // namespace nibble::architectures_table_test
