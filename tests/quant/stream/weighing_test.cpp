// Which statistics a tensor of a plan gets, and that conversions and measurements use them.
#include "quant/stream/weighing.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "quant/codecs/four_bit/four_bit.hpp"
#include "quant/jobs/convert/convert.hpp"
#include "quant/quantizers/search/scale_search.hpp"
#include "quant/stream/conversion_memory.hpp"
#include "tests/support/calibration.hpp"
#include "tests/support/conversion.hpp"
#include "tests/support/remedies.hpp"

namespace nibble::weighing_test {
namespace {

using test::error_of;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr const char* searched = "nf4:double-quant=no,absmax=search";

std::vector<float> squares(std::size_t columns, unsigned seed) {
  std::vector<float> values = test::normal_weights(columns, seed);
  for (float& value : values) value = std::exp(2 * value);
  return values;
}

class Statistics : public testing::Test {
 protected:
  Statistics() {
    in.add_normal("l.q.weight", DType::f32, {64, 96});
    in.add_normal("l.o.weight", DType::f32, {96, 80});
    maker.add("l.q", squares(96, 1));
    maker.add("l.o", squares(80, 2));
  }
  [[nodiscard]] virtual Recipe recipe(const CodecSpec& to) const { return test::recipe(to); }
  [[nodiscard]] Plan plan(const CodecSpec& to) const {
    Recipe recipe = this->recipe(to);
    recipe.calibration = maker.write(dir);
    return make_plan(in, recipe);
  }
  [[nodiscard]] Weighing weighing(const CodecSpec& to = searched) const { return {in, plan(to), 1'000'000'000}; }
  [[nodiscard]] std::string refusal(const CodecSpec& to = searched, Errc code = Errc::bad_input) const {
    return error_of([&] { (void)weighing(to); }, code);
  }
  // The roots of the first row of each tensor; none: all columns count alike.
  [[nodiscard]] std::map<std::string, std::vector<float>> roots(const CodecSpec& to = searched) const {
    const Plan made = plan(to);
    const Weighing weighing(in, made, 1'000'000'000);
    std::map<std::string, std::vector<float>> all;
    for (const PlannedTensor& tensor : made.tensors) {
      const ColumnWeights columns = weighing.columns_of(tensor);
      std::vector<float>& its = all[tensor.info.name];
      if (columns.empty()) continue;
      its.resize(tensor.info.shape[1]);
      std::ranges::copy(columns.roots(0, its.size(), its), its.begin());
    }
    return all;
  }
  static std::vector<float> roots_of(const std::vector<float>& mean_square) {
    std::vector<float> room(mean_square.size());
    const ColumnWeights columns(mean_square);
    const auto found = columns.roots(0, room.size(), room);
    return {found.begin(), found.end()};
  }

  test::TempDir dir;
  test::StatisticsMaker maker;
  test::MemoryReader in;
};

TEST_F(Statistics, AreThoseOfATensorsInput) {
  for (const char* const to : {searched, "int8:absmax=search"}) {
    const auto found = roots(to);
    EXPECT_EQ(found.at("l.q.weight"), roots_of(squares(96, 1)));
    EXPECT_EQ(found.at("l.o.weight"), roots_of(squares(80, 2)));
  }
  EXPECT_THAT(weighing().warnings(), IsEmpty());
  EXPECT_THAT(weighing().identity(), HasSubstr(R"("tensors":2})"));
}

TEST_F(Statistics, AreOfNoUseWithoutASearch) {
  EXPECT_EQ(refusal("nf4", Errc::usage),
            "statistics of a calibration have no effect: the absmax of no tensor is searched");
  Recipe recipe = test::recipe("nf4");
  EXPECT_EQ(Weighing(in, make_plan(in, recipe), 1'000'000'000).identity(), "");
  recipe.to = searched;
  recipe.calibration = maker.write(dir);
  recipe.rules.push_back({"l.o.weight", CodecSpec("nf4:double-quant=no")});
  const Plan made = make_plan(in, recipe);
  const Weighing weighing(in, made, 1'000'000'000);
  for (const PlannedTensor& tensor : made.tensors)
    EXPECT_EQ(weighing.columns_of(tensor).empty(), tensor.info.name == "l.o.weight");
}

// A plan that searches nothing does not name statistics, which would be refused.
TEST_F(Statistics, AreForPlansThatSearch) {
  for (const auto& [to, is_searched] : {std::pair(searched, true), {"nf4", false}}) {
    Plan made = make_plan(in, test::recipe(to));
    weigh_searches(made, "stats");
    EXPECT_EQ(made.recipe.calibration, is_searched ? "stats" : "") << to;
  }
  Recipe recipe = test::recipe("nf4:double-quant=no");
  recipe.rules.push_back({"l.o.weight", CodecSpec(searched)});
  Plan made = make_plan(in, recipe);
  weigh_searches(made, "stats");
  EXPECT_EQ(made.recipe.calibration, "stats");
}

TEST_F(Statistics, MayLackATensor) {
  in.add_normal("l.up.weight", DType::f32, {64, 64});
  in.add_normal("l.v.weight", DType::f32, {64, 64});
  EXPECT_THAT(weighing().warnings(),
              ElementsAre("2 of 4 tensors whose absmax is searched have no statistics, so all their columns count "
                          "alike: 'l.up.weight', ..."));
  EXPECT_THAT(weighing().identity(), HasSubstr(R"("tensors":2})"));
  EXPECT_THAT(roots().at("l.up.weight"), IsEmpty());
  maker.manifest["weights"] = {{"other.weight", {"l.q"}}};
  EXPECT_THAT(refusal(),
              EndsWith("stats/calibration.json: lists no tensor whose absmax is searched; 'l.q.weight' is the "
                       "first: is it of another model?"));
}

TEST_F(Statistics, HaveToFit) {
  maker.manifest["weights"]["l.o.weight"] = {"l.q"};
  EXPECT_THAT(refusal(), EndsWith("tensor 'l.o.weight': has 80 columns, its input 'l.q' in the statistics has 96"));
}

TEST_F(Statistics, AreReadBeforeAnythingIsWritten) {
  maker.add("l.v", {1, NAN});
  in.add_normal("l.v.weight", DType::f32, {64, 2});
  EXPECT_THAT(refusal(), HasSubstr("tensor 'l.v.mean_square': value 1 is nan"));
}

// Of a tensor that is not searched.
TEST_F(Statistics, MayBeDamagedWhereTheyAreNotUsed) {
  maker.add("l.v", {1, NAN});
  in.add_normal("l.v.weight", DType::f32, {64, 2});
  Recipe recipe = test::recipe(searched);
  recipe.calibration = maker.write(dir);
  recipe.rules.push_back({"l.v.weight", CodecSpec("nf4:double-quant=no")});
  EXPECT_THAT(Weighing(in, make_plan(in, recipe), 1'000'000'000).identity(), HasSubstr(R"("tensors":2})"));
}

TEST_F(Statistics, DescribeThemselves) {
  const std::string before = weighing().identity();
  EXPECT_EQ(weighing().identity(), before);
  maker = {};
  maker.add("l.q", squares(96, 3));
  maker.add("l.o", squares(80, 2));
  const std::string other = weighing().identity();
  const auto manifest_hash = [](const std::string& text) { return text.substr(0, text.find("mean")); };
  EXPECT_NE(other, before);
  EXPECT_EQ(manifest_hash(other), manifest_hash(before));
}

class StatisticsOfExperts : public Statistics {
 protected:
  StatisticsOfExperts() {
    in.set_architecture("Qwen3MoeForCausalLM", false);
    in.add_normal("model.layers.0.self_attn.o_proj.weight", DType::bf16, {64, 96});
    maker.add("model.layers.0.self_attn.o_proj", squares(96, 7));
    maker.add("e.0", squares(128, 4));
    maker.add("e.1", squares(128, 5));
    maker.manifest["weights"][fused] = {"e.0", "e.1", nullptr};
  }
  [[nodiscard]] Recipe recipe(const CodecSpec& to) const override { return test::with_experts(to); }
  static constexpr const char* experts = "model.layers.0.mlp.experts.";
  const std::string fused = std::string(experts) + "gate_up_proj";
  [[nodiscard]] std::string matrix(int number) const {
    return experts + std::to_string(number) + ".gate_up_proj.weight";
  }
};

TEST_F(StatisticsOfExperts, AreThoseOfEach) {
  in.add_normal(fused, DType::bf16, {3, 64, 128});
  const auto found = roots();
  EXPECT_EQ(found.at(matrix(0)), roots_of(squares(128, 4)));
  EXPECT_EQ(found.at(matrix(1)), roots_of(squares(128, 5)));
  EXPECT_THAT(found.at(matrix(2)), IsEmpty());
  EXPECT_THAT(weighing().warnings(), ElementsAre(HasSubstr("'" + matrix(2) + "'")));
  maker.manifest["weights"][fused] = {"e.0", "e.1"};
  EXPECT_THAT(refusal(), HasSubstr("has at least 3 matrices, the statistics have inputs of 2"));
}

TEST_F(StatisticsOfExperts, AreNotGuessed) {
  in.add_normal(fused, DType::bf16, {3, 128, 128});
  EXPECT_THAT(roots().at(matrix(0)), IsEmpty());
  EXPECT_THAT(weighing().warnings(), ElementsAre(HasSubstr("3 of 4")));
}

TEST_F(StatisticsOfExperts, CountForARowAsAWhole) {
  in.add_normal(fused, DType::bf16, {3, 128, 64});
  EXPECT_THAT(roots().at(matrix(0)), IsEmpty());
  EXPECT_THAT(weighing().warnings(), ElementsAre(HasSubstr("1 of 4")));  // the one that no token reached
  EXPECT_THAT(weighing().identity(), HasSubstr(R"("tensors":1})"));      // without the experts
  EXPECT_EQ(weighing().memory().tensors, 1U);
  EXPECT_EQ(weighing().memory().column_bytes, 96 * sizeof(float));
}

// By the estimate of the conversion itself, whoever made the plan.
TEST_F(Statistics, TakeMemory) {
  const Weighing opened = weighing();
  EXPECT_GE(opened.memory().bytes, std::filesystem::file_size(dir.path() / "stats/calibration.json"));
  EXPECT_EQ(opened.memory().column_bytes, 96 * sizeof(float));
  EXPECT_EQ(opened.memory().tensors, 2U);
  EXPECT_EQ(Weighing().memory().bytes, 0U);
  const Remedy remedy = test::remedy_of([&] {
    (void)conversion_memory(plan(searched), {1, 1 << 20}, opened.memory());
  });
  const auto convert_with = [&](std::uint64_t max_memory) {
    test::MemoryWriter out;
    Progress progress;
    (void)convert(in, plan(searched), out, {1, max_memory}, progress);
  };
  convert_with(remedy.bytes);
  EXPECT_THAT(error_of([&] { convert_with(remedy.bytes - 1); }, Errc::no_space), HasSubstr("this conversion needs"));
}

// What was used has to be what is there in the end.
TEST_F(Statistics, MayNotChangeMeanwhile) {
  class Change final : public Progress {
   public:
    explicit Change(std::filesystem::path path) : path_(std::move(path)) {}
    void advance(std::string_view, std::uint64_t, std::uint64_t) override {
      std::filesystem::resize_file(path_, std::filesystem::file_size(path_) + 1);
    }

   private:
    std::filesystem::path path_;
  };
  for (const char* const name : {"calibration.json", test::StatisticsMaker::weights_name}) {
    const Plan made = plan(searched);
    Change progress(dir.path() / "stats" / name);
    test::MemoryWriter out;
    EXPECT_THAT(error_of(
                    [&] {
                      (void)convert(in, made, out, {1, 1'000'000'000}, progress);
                    },
                    Errc::input_changed),
                EndsWith(std::string(name) + ": changed while it was read"));
  }
}

// Those of the plan and of the measurement, in which one tensor has its columns.
TEST_F(Statistics, TakeMemoryOfMeasurements) {
  const StatisticsMemory memory = weighing().memory();
  const auto least = [&](Plan planned) {
    const std::vector<Candidate> candidates{{{}, nullptr, std::move(planned)}};
    return test::remedy_of([&] {
             Progress progress;
             (void)measure(in, candidates, {.resources = {1, 16'000'000}}, progress);
           })
        .bytes;
  };
  Plan without = plan(searched);
  without.recipe.calibration.clear();
  EXPECT_EQ(least(plan(searched)), least(without) + 2 * memory.bytes + memory.column_bytes);
}

// Rows end within blocks, and batches within the matrix.
TEST_F(Statistics, ReachTheSearch) {
  in.add_normal("l.large.weight", DType::bf16, {1500, 1001});
  maker.add("l.large", squares(1001, 6));
  const test::Converted made = test::converted(in, plan(searched).recipe);
  const auto codec = make_codec("nf4");
  const auto& four_bit = dynamic_cast<const FourBitCodec&>(*codec);
  for (std::size_t t = 0; t < made.reader.tensors().size(); ++t) {
    if (made.reader.tensors().name(t) != "l.large.weight.absmax") continue;
    std::vector<float> stored(made.reader.tensors().bytes(t) / sizeof(float)), expected(stored.size());
    made.reader.read(t, 0, std::as_writable_bytes(std::span(stored)));
    const ColumnWeights columns(squares(1001, 6));
    const ScaleSearch search(four_bit.tables(), 64, AbsmaxChoice::search);
    SearchedBlocks(search, DType::bf16, in.bytes(2), {&columns, 0}).find(expected);
    EXPECT_EQ(stored, expected);
    return;
  }
  FAIL() << "no absmax";
}

// What measure() encodes is what a conversion writes.
TEST_F(Statistics, ReachMeasurements) {
  for (const char* const to : {searched, "nf4:absmax=search", "int8:absmax=search"}) {
    const Recipe recipe = plan(to).recipe;
    const test::Converted made = test::converted(in, recipe);
    const std::vector<Candidate> candidates{test::checkpoint(made.reader), test::plan(in, recipe),
                                            test::plan(in, test::recipe(to))};
    Progress progress;
    const Measurement found = measure(in, candidates, {}, progress);
    for (std::size_t t = 0; t < found.tensors.size(); ++t) {
      const auto square = [&](std::size_t c) { return found.candidates[c].tensors[t]->stats.square; };
      EXPECT_EQ(square(0), square(1)) << to;
      EXPECT_LT(square(2), square(1)) << to;  // an error that is not weighted
    }
  }
}

}  // namespace
}  // namespace nibble::weighing_test
