#include "quant/schemes/module_targets.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace nibble::module_targets_test {
namespace {

ModuleTargets targets(const std::string& list) { return {nlohmann::json::parse(list), "targets"}; }

TEST(ModuleTargets, NamesMatchAsAWhole) {
  const ModuleTargets names = targets(R"(["h.0.q_proj","lm_head"])");
  EXPECT_EQ(names.problem(), "");
  EXPECT_TRUE(names.match("h.0.q_proj"));
  EXPECT_TRUE(names.match("lm_head"));
  for (const char* const other : {"h.0", "h.0.q_proj.weight", "a.h.0.q_proj", "q_proj", ""})
    EXPECT_FALSE(names.match(other)) << other;
  EXPECT_FALSE(names.has_classes());
  EXPECT_EQ(names.pattern_count(), 0U);
}

// As re.match() of Python: the end of a name may follow, and a dot is any character but a newline.
TEST(ModuleTargets, PatternsMatchFromTheBeginning) {
  const ModuleTargets patterns = targets(R"(["re:h\\.\\d\\.mlp","re:a.b$"])");
  EXPECT_EQ(patterns.pattern_count(), 2U);
  EXPECT_TRUE(patterns.match("h.1.mlp"));
  EXPECT_TRUE(patterns.match("h.1.mlp.up_proj"));
  EXPECT_TRUE(patterns.match("axb"));
  for (const char* const other : {"model.h.1.mlp", "h.x.mlp", "axbc", "a\nb"})
    EXPECT_FALSE(patterns.match(other)) << other;
}

TEST(ModuleTargets, LinearIsEveryModule) {
  const ModuleTargets linear = targets(R"(["Linear"])");
  EXPECT_TRUE(linear.match("anything.at.all"));
  EXPECT_TRUE(linear.has_classes());
  for (const char* const other : {R"(["linear"])", R"(["LinearAttention"])", R"(["re:Linear"])"})
    EXPECT_FALSE(targets(other).match("anything.at.all")) << other;
}

// Modules have small letters or are inside of others.
TEST(ModuleTargets, ClassesBeginWithACapitalAndHaveNoDot) {
  for (const auto& [entry, is_class] : {std::pair{"Conv1D", true},
                                        {"A", true},
                                        {"Z", true},
                                        {"lm_head", false},
                                        {"Encoder.0", false},
                                        {"", false},
                                        {"_A", false},
                                        {"re:Conv1D", false}})
    EXPECT_EQ(targets(nlohmann::json::array({entry}).dump()).has_classes(), is_class) << entry;
  EXPECT_FALSE(targets(R"(["Conv1D"])").match("h.0.conv"));
}

TEST(ModuleTargets, NothingMatchesAListThatCannotBeApplied) {
  for (const auto& [list, problem] :
       {std::pair{R"("Linear")", "targets is not a list"},
        {R"({"Linear":1})", "targets is not a list"},
        {R"(["Linear",7])", "targets has an entry that is not a string"},
        {R"j(["Linear","re:("])j", "targets has the pattern 're:(', which RE2 does not take: missing ): ("}}) {
    const ModuleTargets found = targets(list);
    EXPECT_EQ(found.problem(), problem);
    EXPECT_FALSE(found.match("h.0")) << list;
  }
}

TEST(ModuleTargets, TheNumberOfPatternsAndTheirMemoryAreLimited) {
  nlohmann::json list = nlohmann::json::array();
  for (std::size_t i = 0; i < ModuleTargets::max_patterns; ++i) list.push_back("re:a");
  list.push_back("b");  // names are not counted
  const ModuleTargets at_most(list, "ignore");
  EXPECT_EQ(at_most.problem(), "");
  EXPECT_EQ(at_most.pattern_count(), ModuleTargets::max_patterns);
  list.push_back("re:a");
  EXPECT_EQ(ModuleTargets(list, "ignore").problem(), "ignore has more than 1000 patterns");
  EXPECT_NE(targets(R"j(["re:((a{100}){10}){10}"])j").problem(), "");
}

TEST(ModuleTargets, AnEmptyListMatchesNothing) {
  const ModuleTargets of_nothing, of_none = targets("[]");
  for (const ModuleTargets* const none : {&of_nothing, &of_none}) {
    EXPECT_EQ(none->problem(), "");
    EXPECT_FALSE(none->match(""));
    EXPECT_FALSE(none->match("h.0"));
  }
}

}  // namespace
}  // namespace nibble::module_targets_test
