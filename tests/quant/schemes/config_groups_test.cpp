#include "quant/schemes/config_groups.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace nibble::config_groups_test {
namespace {

ConfigGroups groups(const std::string& config) { return ConfigGroups(nlohmann::json::parse(config)); }

// What contradicts a module with a scale per channel.
std::string contradiction(const std::string& config, std::string_view module) {
  const ConfigGroups found = groups(config);
  EXPECT_EQ(found.problem(), "");
  return found.contradiction(module, "channel", false);
}

const char* const two_groups = R"({"config_groups":{"a":{"targets":["h.a"],"weights":{"strategy":"channel"}},)"
                               R"("b":{"targets":["re:h.b"],"weights":{"strategy":"tensor"}}},"ignore":["h.b.0"]})";

TEST(ConfigGroups, TheGroupOfAModuleDecides) {
  EXPECT_EQ(contradiction(two_groups, "h.a"), "");
  EXPECT_EQ(contradiction(two_groups, "h.b.1"), "config_groups.b.weights.strategy of config.json is 'tensor'");
  EXPECT_EQ(contradiction(two_groups, "h.c"), "config_groups of config.json has no group with it among its targets");
  EXPECT_EQ(groups(two_groups).contradiction("h.b.1", "tensor", false), "");
}

// The one scale of a tensor with one row is the same thing by both names; but that the module has a group counts.
TEST(ConfigGroups, AnyStrategyIsStillThatOfAGroup) {
  EXPECT_EQ(groups(two_groups).contradiction("h.b.1", "channel", true), "");
  EXPECT_NE(groups(two_groups).contradiction("h.c", "channel", true), "");
  EXPECT_NE(groups(two_groups).contradiction("h.b.0", "channel", true), "");
}

TEST(ConfigGroups, WhatIsIgnoredIsNotQuantized) {
  EXPECT_EQ(contradiction(two_groups, "h.b.0"), "ignore of config.json says that it is not quantized");
  EXPECT_EQ(contradiction(R"({"ignore":["h"]})", "h"), "ignore of config.json says that it is not quantized");
  EXPECT_EQ(contradiction(R"({"ignore":null})", "h"), "");
}

// One group that agrees is enough; no file says of which class a module is.
TEST(ConfigGroups, AClassMayBeThatOfTheModule) {
  const auto both = [](const char* first, const char* second) {
    return fmt::format(R"({{"config_groups":{{"a":{{"targets":["Mlp"],"weights":{{"strategy":"{}"}}}},)"
                       R"("b":{{"targets":["h"],"weights":{{"strategy":"{}"}}}}}}}})",
                       first, second);
  };
  EXPECT_EQ(contradiction(both("channel", "tensor"), "h"), "");
  EXPECT_EQ(contradiction(both("tensor", "channel"), "h"), "");
  EXPECT_EQ(contradiction(both("tensor", "block"), "h"), "config_groups.b.weights.strategy of config.json is 'block'");
  EXPECT_EQ(contradiction(both("tensor", "channel"), "other"),
            "config_groups.a.weights.strategy of config.json is 'tensor'");
}

TEST(ConfigGroups, WhatIsNotStatedContradictsNothing) {
  for (const char* const weights : {"{}", R"({"strategy":null})", R"({"strategy":7})"})
    EXPECT_EQ(
        contradiction(fmt::format(R"({{"config_groups":{{"a":{{"targets":["h"],"weights":{}}}}}}})", weights), "h"), "")
        << weights;
  // Groups that leave out their weights or their targets say nothing, not even about other modules.
  for (const char* const none : {"{}", R"({"config_groups":7})", R"({"config_groups":{}})",
                                 R"({"config_groups":{"a":[],"b":{"targets":["x"]},"c":{"weights":{}}}})",
                                 R"({"config_groups":{"a":{"targets":["x"],"weights":null}}})"})
    EXPECT_EQ(contradiction(none, "h"), "") << none;
}

TEST(ConfigGroups, ProblemsNameTheKey) {
  EXPECT_EQ(groups(R"({"config_groups":{"a":{"targets":7,"weights":{}}}})").problem(),
            "config_groups.a.targets is not a list");
  EXPECT_EQ(groups(R"({"ignore":["x",null]})").problem(), "ignore has an entry that is not a string");
  EXPECT_EQ(groups(R"({"config_groups":{"a\n":{"targets":7,"weights":{}}}})").problem().find('\n'), std::string::npos);
}

nlohmann::json patterns(std::size_t n) { return nlohmann::json::array_t(n, "re:a"); }
nlohmann::json group_of(const nlohmann::json& targets) {
  return {{"targets", targets}, {"weights", nlohmann::json::object()}};
}

TEST(ConfigGroups, TheNumberOfPatternsIsThatOfAllLists) {
  nlohmann::json config{{"config_groups", {{"a", group_of(patterns(400))}, {"b", group_of(patterns(500))}}},
                        {"ignore", patterns(100)}};
  EXPECT_EQ(ConfigGroups(config).problem(), "");
  const char* const too_many = "config_groups and ignore have more than 1000 patterns";
  config["ignore"] = patterns(101);
  EXPECT_EQ(ConfigGroups(config).problem(), too_many);
  config.erase("ignore");
  config["config_groups"]["c"] = group_of(patterns(101));
  EXPECT_EQ(ConfigGroups(config).problem(), too_many);
}

TEST(ConfigGroups, TheNumberOfGroupsIsLimited) {
  nlohmann::json config;
  for (std::size_t i = 0; i < ConfigGroups::max_groups; ++i)
    config["config_groups"][fmt::format("g{}", i)] = group_of(nlohmann::json::array());
  config["config_groups"]["says nothing"] = nlohmann::json::object();
  EXPECT_EQ(ConfigGroups(config).problem(), "");
  config["config_groups"]["one more"] = group_of(nlohmann::json::array());
  EXPECT_EQ(ConfigGroups(config).problem(), "config_groups has more than 1000 groups");
}

}  // namespace
}  // namespace nibble::config_groups_test
