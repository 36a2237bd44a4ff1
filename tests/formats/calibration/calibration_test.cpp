#include "formats/calibration/calibration.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/support/calibration.hpp"

namespace nibble::calibration_test {
namespace {

using test::error_of;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using Json = nlohmann::ordered_json;

constexpr float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();

class CalibrationFiles : public testing::Test {
 protected:
  CalibrationFiles() {
    maker.add("layer.q", {1, 0, 4}, {1, 2, 3, 2, 5, 6, 3, 6, 9});
    maker.add("layer.o", {0.25f, 8}, {1, -2, -2, 4});
    maker.manifest["weights"]["layer.k.weight"] = {"layer.q"};
    maker.manifest["weights"]["experts"] = {"layer.o", nullptr, "layer.o"};
  }
  [[nodiscard]] Calibration opened() const { return Calibration(maker.write(dir)); }
  [[nodiscard]] std::string refusal() const {
    return error_of([&] { (void)opened(); });
  }
  // What is said about a manifest in which this was done.
  template <class Change> [[nodiscard]] std::string refusal(Change&& change) {
    const Json before = maker.manifest;
    change(maker.manifest);
    std::string text = refusal();
    maker.manifest = before;
    return text;
  }
  [[nodiscard]] std::string about_manifest(const std::string& fact) const {
    return (dir.path() / "stats/calibration.json: ").string() + fact;
  }
  [[nodiscard]] std::string about_tensor(const std::string& fact) const {
    return (dir.path() / "stats" / test::StatisticsMaker::weights_name).string() + ": " + fact;
  }

  test::TempDir dir;
  test::StatisticsMaker maker;
};

TEST_F(CalibrationFiles, AreRead) {
  const Calibration calibration = opened();
  ASSERT_EQ(calibration.inputs().size(), 2u);
  EXPECT_EQ(calibration.inputs()[0].name, "layer.q");
  EXPECT_EQ(calibration.inputs()[0].columns, 3u);
  EXPECT_EQ(calibration.inputs()[0].tokens, 7u);
  EXPECT_THAT(calibration.mean_square(0), ElementsAre(1, 0, 4));
  EXPECT_THAT(calibration.mean_square(1), ElementsAre(0.25f, 8));
  EXPECT_THAT(calibration.absmax(1), ElementsAre(3, 3));
  EXPECT_THAT(*calibration.find("layer.q.weight"), ElementsAre(0));
  EXPECT_THAT(*calibration.find("layer.k.weight"), ElementsAre(0));  // shares the input
  EXPECT_THAT(*calibration.find("experts"), ElementsAre(1, std::nullopt, 1));
  EXPECT_EQ(calibration.find("layer.q"), nullptr);
  EXPECT_EQ(calibration.manifest_bytes(), maker.manifest.dump().size());
  calibration.check_unchanged();
}

TEST_F(CalibrationFiles, SecondMomentsAreReadRowByRow) {
  const Calibration calibration = opened();
  ASSERT_TRUE(calibration.has_second_moments());
  std::vector<float> all(9), rows(6);
  calibration.read_second_moment(0, 0, all);
  EXPECT_THAT(all, ElementsAre(1, 2, 3, 2, 5, 6, 3, 6, 9));
  calibration.read_second_moment(0, 1, rows);
  EXPECT_THAT(rows, ElementsAre(2, 5, 6, 3, 6, 9));
  const auto read = [&](std::uint64_t first, std::size_t n) {
    return error_of([&] { calibration.read_second_moment(0, first, std::span(all).first(n)); }, Errc::usage);
  };
  EXPECT_EQ(read(2, 6), "6 values from row 2 of a matrix with 3 rows and columns");
  EXPECT_EQ(read(0, 4), "4 values from row 0 of a matrix with 3 rows and columns");
  EXPECT_EQ(read(4, 3), "3 values from row 4 of a matrix with 3 rows and columns");
  EXPECT_EQ(read(3, 0), "");
}

TEST_F(CalibrationFiles, MayLackSecondMoments) {
  maker.manifest["second_moments"] = false;
  const Calibration calibration = opened();
  EXPECT_FALSE(calibration.has_second_moments());
  std::vector<float> row(3);
  EXPECT_EQ(error_of([&] { calibration.read_second_moment(0, 0, row); }, Errc::usage),
            "the statistics have no second moments");
}

TEST_F(CalibrationFiles, ValuesThatCannotBeAreRefused) {
  const auto refusal_of = [&](float bad, auto&& read) {
    test::StatisticsMaker other;
    other.add("a", {1, bad}, {1, 2, 3, bad});
    const Calibration calibration(other.write(dir));
    return error_of([&] { read(calibration); });
  };
  const auto mean_square = [](const Calibration& calibration) { (void)calibration.mean_square(0); };
  EXPECT_EQ(refusal_of(nan, mean_square),
            about_tensor("tensor 'a.mean_square': value 1 is nan, not finite and at least 0"));
  EXPECT_EQ(refusal_of(infinity, mean_square),
            about_tensor("tensor 'a.mean_square': value 1 is inf, not finite and at least 0"));
  EXPECT_EQ(refusal_of(-2, mean_square),
            about_tensor("tensor 'a.mean_square': value 1 is -2, not finite and at least 0"));
  const auto second_moment = [](const Calibration& calibration) {
    std::vector<float> row(2);
    calibration.read_second_moment(0, 1, row);
  };
  EXPECT_EQ(refusal_of(-infinity, second_moment),
            about_tensor("tensor 'a.second_moment': value 3 is -inf, not finite"));
  EXPECT_EQ(refusal_of(-2, second_moment),
            about_tensor("tensor 'a.second_moment': value 3 is -2, not at least 0, as squares are"));
}

TEST_F(CalibrationFiles, WhatIsNoManifestIsRefused) {
  EXPECT_EQ(error_of([&] { (void)Calibration(dir.path()); }),
            dir.path().string() + ": has no calibration.json: python -m nibble.calibrate did not write it");
  dir.write("progress.json", "{}");
  EXPECT_EQ(error_of([&] { (void)Calibration(dir.path()); }),
            dir.path().string() + ": is not complete: python -m nibble.calibrate can go on with it");
  EXPECT_THAT(error_of([&] { (void)Calibration(dir.path() / "none"); }), EndsWith("No such file or directory"));
  EXPECT_EQ(refusal([](Json& m) { m = {1}; }), about_manifest("'format' is not 'nibble.calibration'"));
  EXPECT_EQ(refusal([](Json& m) { m.erase("format"); }), about_manifest("'format' is not 'nibble.calibration'"));
  EXPECT_EQ(refusal([](Json& m) { m["version"] = 2; }), about_manifest("has version 2, this nibble reads 1"));
  EXPECT_EQ(refusal([](Json& m) { m["version"] = true; }), about_manifest("has version true, this nibble reads 1"));
  EXPECT_EQ(refusal([](Json& m) { m["version"] = 1.0; }), about_manifest("has version 1.0, this nibble reads 1"));
  EXPECT_EQ(refusal([](Json& m) { m.erase("version"); }), about_manifest("has version null, this nibble reads 1"));
  EXPECT_EQ(refusal([](Json& m) { m["second_moments"] = 1; }), about_manifest("'second_moments' is not true or false"));
  EXPECT_EQ(refusal([](Json& m) { m.erase("inputs"); }), about_manifest("'inputs' is not an object"));
  EXPECT_EQ(refusal([](Json& m) { m["weights"] = {"a"}; }), about_manifest("'weights' is not an object"));
}

TEST_F(CalibrationFiles, InputsAreChecked) {
  const auto refusal_of = [&](const char* member, const Json& value) {
    return refusal([&](Json& m) { m["inputs"]["layer.q"][member] = value; });
  };
  for (const char* const member : {"columns", "tokens"})
    for (const Json& value : {Json(0), Json(-1), Json(3.0), Json("3"), Json()})
      EXPECT_EQ(refusal_of(member, value),
                about_manifest("input 'layer.q': '" + std::string(member) + "' is not a positive integer"));
  EXPECT_EQ(refusal([](Json& m) { m["inputs"]["layer.q"] = 1; }),
            about_manifest("input 'layer.q': 'columns' is not a positive integer"));
  EXPECT_EQ(refusal_of("file", 1), about_manifest("input 'layer.q': 'file' is not a text"));
  for (const char* const name : {"", ".", "..", "../a", "/a"})
    EXPECT_EQ(refusal_of("file", name), about_manifest("input 'layer.q': '" + std::string(name) +
                                                       "' is not the name of a file in this directory"));
  EXPECT_THAT(refusal_of("file", "other.safetensors"),
              EndsWith("stats/other.safetensors: cannot open: No such file or directory"));
  EXPECT_EQ(refusal_of("columns", 4), about_tensor("tensor 'layer.q.mean_square': is F32 3, not F32 4"));
  EXPECT_EQ(refusal([](Json& m) { m["inputs"]["layer.x"] = m["inputs"]["layer.q"]; }),
            about_tensor("has no tensor 'layer.x.mean_square'"));
  maker.weights.add("b.mean_square", DType::f32, {1}, {1});
  maker.weights.add("b.absmax", DType::f16, {1}, {1});
  EXPECT_EQ(refusal([](Json& m) {
              m["inputs"]["b"] = m["inputs"]["layer.q"];
              m["inputs"]["b"]["columns"] = 1;
            }),
            about_tensor("tensor 'b.absmax': is F16 1, not F32 1"));
}

TEST_F(CalibrationFiles, SecondMomentsAreChecked) {
  test::StatisticsMaker other;
  other.add("a", {1, 2});
  other.manifest["second_moments"] = true;
  EXPECT_EQ(error_of([&] { (void)Calibration(other.write(dir)); }), about_tensor("has no tensor 'a.second_moment'"));
  other.weights.add("a.second_moment", DType::f32, {1, 4}, {1, 2, 3, 4});
  EXPECT_EQ(error_of([&] { (void)Calibration(other.write(dir)); }),
            about_tensor("tensor 'a.second_moment': is F32 1 x 4, not F32 2 x 2"));
}

TEST_F(CalibrationFiles, WeightsAreChecked) {
  const auto refusal_of = [&](const Json& inputs) { return refusal([&](Json& m) { m["weights"]["w"] = inputs; }); };
  EXPECT_EQ(refusal_of("layer.q"), about_manifest("weight 'w': is not a list of one or more inputs"));
  EXPECT_EQ(refusal_of(Json::array()), about_manifest("weight 'w': is not a list of one or more inputs"));
  EXPECT_EQ(refusal_of({1}), about_manifest("weight 'w': an input is neither a name nor null"));
  EXPECT_EQ(refusal_of({"x"}), about_manifest("weight 'w': has the input 'x', which is not listed"));
}

TEST_F(CalibrationFiles, SensitivitiesAreReadWhereThereAreAny) {
  EXPECT_EQ(opened().sensitivity("layer.q.weight"), std::nullopt);
  maker.manifest["sensitivities"] = {{"layer.q.weight", 0.25}, {"experts", 0}, {"layer.o.weight", 3}};
  const Calibration calibration = opened();
  EXPECT_EQ(calibration.sensitivity("layer.q.weight"), 0.25);
  EXPECT_EQ(calibration.sensitivity("experts"), 0);
  EXPECT_EQ(calibration.sensitivity("layer.o.weight"), 3);
  EXPECT_EQ(calibration.sensitivity("layer.k.weight"), std::nullopt);
}

TEST_F(CalibrationFiles, SensitivitiesAreChecked) {
  const auto refusal_of = [&](const Json& found) { return refusal([&](Json& m) { m["sensitivities"] = found; }); };
  EXPECT_EQ(refusal_of({1}), about_manifest("'sensitivities' is not an object"));
  EXPECT_EQ(refusal_of(Json()), about_manifest("'sensitivities' is not an object"));
  EXPECT_EQ(refusal_of({{"w", 1}}), about_manifest("sensitivity of 'w': this weight is not listed"));
  for (const Json& value : {Json(-1e-9), Json("1"), Json(), Json(true), Json(infinity)})  // infinity is dumped as null
    EXPECT_EQ(refusal_of({{"layer.q.weight", value}}),
              about_manifest("sensitivity of 'layer.q.weight': is not a number of at least 0"));
  std::string text = maker.manifest.dump();
  text.insert(1, R"("sensitivities":{"layer.q.weight":1e999},)");
  maker.write(dir);
  dir.write("stats/calibration.json", text);
  EXPECT_THAT(error_of([&] { (void)Calibration(dir.path() / "stats"); }), EndsWith("is too large"));
}

TEST_F(CalibrationFiles, NamesThatOccurTwiceAreRefused) {
  maker.write(dir);
  std::string text = maker.manifest.dump();
  text.insert(text.find("\"layer.k.weight\""), R"("layer.q.weight":["layer.o"],)");
  dir.write("stats/calibration.json", text);
  EXPECT_THAT(error_of([&] { (void)Calibration(dir.path() / "stats"); }), HasSubstr("layer.q.weight"));
}

// The tree of a manifest of 4 MB takes more.
TEST_F(CalibrationFiles, AManifestTakesNoMoreMemoryThanIsAllowed) {
  maker.write(dir);
  dir.write("stats/calibration.json", maker.manifest.dump() + std::string(4 << 20, ' '));
  EXPECT_GT(Calibration(dir.path() / "stats").memory_bytes(), 16u * (4 << 20));
  EXPECT_THAT(error_of([&] { (void)Calibration(dir.path() / "stats", 100'000'000); }, Errc::no_space),
              HasSubstr("/calibration.json: opening it needs at least "));
  std::filesystem::resize_file(dir.path() / "stats/calibration.json", 65 << 20);
  // Before any memory is taken for it.
  EXPECT_THAT(error_of([&] { (void)Calibration(dir.path() / "stats", 100'000'000); }),
              HasSubstr("/calibration.json: has 68157440 bytes, more than the 67108864 that such a file may have"));
}

// Beside what is kept of its header: a manifest may name very many small ones.
TEST_F(CalibrationFiles, EachFileCounts) {
  const std::uint64_t one = opened().memory_bytes();
  dir.write("stats/layer-00001.safetensors", maker.weights.bytes());
  maker.manifest["inputs"]["layer.o"]["file"] = "layer-00001.safetensors";
  EXPECT_GE(opened().memory_bytes() - one, 1024U);
}

TEST_F(CalibrationFiles, AChangeIsSeen) {
  const Calibration calibration = opened();
  dir.write(std::string("stats/") + test::StatisticsMaker::weights_name, maker.weights.bytes() + "x");
  EXPECT_THAT(error_of([&] { calibration.check_unchanged(); }, Errc::input_changed), HasSubstr("layer-00000"));
}

TEST_F(CalibrationFiles, AChangeOfTheManifestIsSeen) {
  const Calibration calibration = opened();
  dir.write("stats/calibration.json", "{}");
  EXPECT_THAT(error_of([&] { calibration.check_unchanged(); }, Errc::input_changed), HasSubstr("calibration.json"));
}

}  // namespace
}  // namespace nibble::calibration_test
