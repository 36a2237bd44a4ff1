// What tells two runs of a conversion apart, and what is said about it. resume_test.cpp has the runs themselves.
#include "quant/jobs/convert/fingerprint.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>

#include "nibble/checkpoint.hpp"
#include "nibble/error.hpp"
#include "nibble/version.hpp"
#include "tests/support/calibration.hpp"
#include "tests/support/conversion.hpp"
#include "tests/support/corrupt.hpp"
#include "tests/support/remedies.hpp"
#include "tests/support/weights_file.hpp"

namespace nibble::fingerprint_test {
namespace {

namespace fs = std::filesystem;
using testing::StartsWith;
using Json = nlohmann::json;

// A model of two matrices in a folder.
class Fingerprint : public testing::Test {
 protected:
  Fingerprint() {
    test::WeightsFile file;
    for (const char* const name : {"a.weight", "b.weight"})
      file.add(name, DType::f32, {64, 64}, test::normal_weights(64 * 64, 1));
    (void)root_.write("model/model.safetensors", file.bytes());
    (void)root_.write("model/config.json", "{}");
  }

  [[nodiscard]] std::string of(const Recipe& recipe, const char* adapter = "", const char* calibration = "") const {
    const auto in = open_checkpoint(model_);
    return fingerprint(*in, make_plan(*in, recipe), adapter, calibration);
  }
  // What is said of a run whose fingerprint has another value for a member.
  [[nodiscard]] std::string said_of(const std::string& member, const Json& value) const {
    const std::string mine = of(test::recipe("nf4"));
    Json theirs = Json::parse(mine);
    theirs[member] = value;
    return difference(theirs.dump(), mine);
  }
  static void touch(const fs::path& file) {
    fs::last_write_time(file, fs::last_write_time(file) + std::chrono::nanoseconds(1));
  }

  test::TempDir root_;
  fs::path model_ = root_.path() / "model";
};

TEST_F(Fingerprint, IsThatOfEqualRuns) {
  const std::string mine = of(test::recipe("nf4"));
  EXPECT_EQ(difference(mine, of(test::recipe("nf4"))), "");
  EXPECT_EQ(Json::parse(mine).at("nibble"), version());
}

// Each member alone. A value that is no text is quoted as JSON.
TEST_F(Fingerprint, EveryMemberHasItsSentence) {
  const Json mine = Json::parse(of(test::recipe("nf4")));
  Json recipe = mine.at("recipe"), files = mine.at("input");
  recipe["to"] = {1, 2};
  files["model.safetensors"] = "1 2.3 4";
  for (const auto& [member, value, text] :
       {std::tuple("nibble", Json("9.9.9"), "nibble 9.9.9 wrote it, and this is " + std::string(version())),
        {"adapter", Json("other"), "it merged another adapter"},
        {"calibration", Json("other"), "it had other calibration statistics"},
        {"input", files, "the input's 'model.safetensors' is another file than it was (its size, time or inode)"},
        {"recipe", recipe, "its recipe has 'to' [1,2], and this one's has nf4"},
        {"statistics", Json{{"x.safetensors", "1"}}, "it had other calibration statistics"},
        {"tensors", Json("other"), "it planned the tensors in another way"}})
    EXPECT_EQ(said_of(member, value), text) << member;
  std::size_t members = 0;
  for (const auto& [member, value] : mine.items()) {
    EXPECT_NE(said_of(member, {{"is", "other"}}), "") << member;
    ++members;
  }
  EXPECT_EQ(members, 7U);
}

// What either of them lacks differs, too.
TEST_F(Fingerprint, NamesWhatOneOfThemLacks) {
  Json recipe = Json::parse(of(test::recipe("nf4"))).at("recipe"), files = Json::object();
  recipe.erase("to");
  EXPECT_EQ(said_of("recipe", recipe), "its recipe has 'to' nothing, and this one's has nf4");
  recipe["to"] = "nf4";
  recipe["new\n"] = true;
  EXPECT_EQ(said_of("recipe", recipe), "its recipe has 'new\\n' true, and this one's has nothing");
  EXPECT_THAT(said_of("input", files), StartsWith("the input's 'config.json' is another file"));
  for (const Json& value : {Json(), Json(5), Json("text"), Json::array({1})}) {
    EXPECT_THAT(said_of("recipe", value), StartsWith("its recipe has '")) << value;
    EXPECT_THAT(said_of("input", value), StartsWith("the input's '")) << value;
  }
}

// Another version may write everything else in another way.
TEST_F(Fingerprint, OfAnotherVersionSaysSo) {
  const std::string mine = of(test::recipe("nf4"));
  EXPECT_THAT(difference(R"({"adapter": 5, "nibble": "9.9.9"})", mine), StartsWith("nibble 9.9.9 wrote it"));
  EXPECT_THAT(difference("{}", mine), StartsWith("nibble nothing wrote it"));
}

// A log that is no fingerprint is never taken for that of an equal run.
TEST_F(Fingerprint, OfNoRunIsRefused) {
  const std::string mine = of(test::recipe("nf4"));
  for (const std::string& theirs : {std::string(), std::string("[1]"), std::string("null"), mine.substr(1), mine + "}"})
    EXPECT_EQ(difference(theirs, mine), "its log does not say which conversion it was") << theirs;
  EXPECT_EQ(said_of("unknown", 1), "its log does not say which conversion it was");
}

TEST_F(Fingerprint, TellsRunsApart) {
  const Recipe nf4 = test::recipe("nf4");
  const std::string mine = of(nf4);
  EXPECT_EQ(difference(of(test::recipe("fp4")), mine), "its recipe has 'to' fp4, and this one's has nf4");
  EXPECT_EQ(difference(of(nf4, "adapter"), mine), "it merged another adapter");
  EXPECT_EQ(difference(of(nf4, "", "statistics"), mine), "it had other calibration statistics");

  // The same recipe, but one of the tensors is planned in another way.
  const auto in = open_checkpoint(model_);
  Plan plan = make_plan(*in, nf4);
  plan.shard_ends.push_back(1);
  EXPECT_EQ(difference(fingerprint(*in, plan, "", ""), mine), "it planned the tensors in another way");

  touch(model_ / "model.safetensors");
  EXPECT_EQ(difference(mine, of(nf4)),
            "the input's 'model.safetensors' is another file than it was (its size, time or inode)");
}

// Only the files that statistics are read from.
TEST_F(Fingerprint, HasTheFilesOfStatistics) {
  test::StatisticsMaker maker;
  maker.add("a", std::vector<float>(64, 1.0f));
  Recipe recipe = test::recipe("nf4:absmax=search");
  recipe.calibration = maker.write(root_);
  const std::string mine = of(recipe);
  (void)root_.write("stats/notes.txt", "of no meaning");
  EXPECT_EQ(difference(mine, of(recipe)), "");
  for (const char* const name : {"calibration.json", test::StatisticsMaker::weights_name}) {
    const std::string before = of(recipe);
    touch(recipe.calibration / name);
    EXPECT_EQ(difference(before, of(recipe)), "it had other calibration statistics") << name;
  }
}

// The stamps are those of the files' names. What was opened must still have these names.
TEST_F(Fingerprint, RefusesAnInputThatChanged) {
  const auto in = open_checkpoint(model_);
  const Plan plan = make_plan(*in, test::recipe("nf4"));
  touch(model_ / "model.safetensors");
  EXPECT_NE(test::error_of([&] { (void)fingerprint(*in, plan, "", ""); }, Errc::input_changed), "");
}

}  // namespace
}  // namespace nibble::fingerprint_test
