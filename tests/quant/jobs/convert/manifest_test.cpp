// nibble.json as text, to the letter, and what is taken back of it.

#include "quant/jobs/convert/manifest.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "nibble/version.hpp"
#include "quant/schemes/scheme.hpp"
#include "tests/support/conversion.hpp"

namespace nibble::manifest_test {
namespace {

using test::MemoryReader;
using test::MemoryWriter;
using test::recipe;
using testing::HasSubstr;
using testing::Not;
using Json = nlohmann::ordered_json;

// A matrix that becomes NF4 and a norm that stays.
MemoryReader model() {
  MemoryReader in;
  in.set_architecture("LlamaForCausalLM");
  in.add_normal("model.layers.0.mlp.up_proj.weight", DType::bf16, {2, 64});
  in.add_normal("model.norm.weight", DType::bf16, {64});
  return in;
}

Plan plan() { return make_plan(model(), recipe("nf4")); }

std::vector<Manifest::Part> parts_of(const PlannedTensor& tensor) {
  std::vector<Manifest::Part> parts;
  for (auto& [part, plane] : stored_parts(*make_codec(tensor.codec), tensor.info))
    parts.push_back({std::move(part), {{0, 255}, {1, 2}}});
  return parts;
}

void add(Manifest& manifest, const PlannedTensor& tensor) {
  manifest.add(tensor, 0, {}, nullptr, nullptr, parts_of(tensor));
}

// Everything between the beginning and the end, by `add`.
template <class Add> std::string written(const Plan& plan, Add&& add, const std::vector<Message>& warnings = {}) {
  MemoryWriter out;
  Manifest manifest(plan, out);
  add(manifest);
  manifest.end({plan, {}, warnings});
  return out.manifest();
}

TEST(Manifest, BeginsWithThePlan) {
  const std::string text = written(plan(), [](Manifest&) {});
  EXPECT_EQ(text, "{\n \"schema_version\": 2,\n \"generator\": \"nibble " + std::string(version()) +
                      "\",\n \"architecture\": \"LlamaForCausalLM\",\n \"dtype\": \"bfloat16\",\n"
                      " \"hash_chunk_bytes\": 1048576,\n"
                      R"( "recipe": {"to":"nf4","on_overflow":"auto",)"
                      R"("nonfinite":"keep","error_report":"basic","tensor":[],"skip":[],"default_skips":true,)"
                      R"("embeddings":"keep","lm_head":"keep","experts":"keep","allow_nibble_only":false,)"
                      R"("max_shard_size":5000000000},)"
                      "\n \"source_bytes\": 384,\n \"tensors\": [\n ],\n"
                      " \"quantized\": {\"tensors\":0,\"weights\":0},\n \"cast\": {\"tensors\":0,\"weights\":0},\n"
                      " \"converted\": {\"tensors\":0,\"weights\":0},\n \"kept\": {\"tensors\":0,\"weights\":0},\n"
                      " \"stored_bytes\": " +
                      std::to_string(plan().stored_bytes()) +
                      ",\n \"quantized_share\": 0.6666666666666666,\n \"warnings\": []\n}\n");
}

TEST(Manifest, TellsWhichAdapterWasMerged) {
  MemoryWriter out;
  const Plan made = plan();
  Manifest(made, out, R"({"r":8})").end({made, {}, {}});
  EXPECT_THAT(out.manifest(), HasSubstr(",\n \"source_bytes\": 384,\n \"adapter\": {\"r\":8},\n \"tensors\": ["));
}

// Quantized and cast tensors are told apart, and `converted` is both.
TEST(Manifest, TotalsAreThoseOfTheReport) {
  MemoryWriter out;
  const Plan made = plan();
  Report report{made, {}, {}};
  report.totals.quantized = {1, 128, {.count = 2, .square = 1, .product = 100, .reference = 100, .test = 100}};
  report.totals.cast = {2, 32, {.count = 3, .square = 0, .product = 900, .reference = 900, .test = 900}};
  report.totals.kept = {1, 64, {}};
  Manifest(made, out).end(report);
  const Json told = Json::parse(out.manifest());
  EXPECT_EQ(told.at("quantized").at("tensors"), 1);
  EXPECT_EQ(told.at("quantized").at("weights"), 128);
  EXPECT_EQ(told.at("quantized").at("error").at("sqnr_db"), 20);
  EXPECT_EQ(told.at("cast").at("tensors"), 2);
  EXPECT_TRUE(told.at("cast").at("error").at("sqnr_db").is_null());  // exact
  EXPECT_EQ(told.at("converted").at("tensors"), 3);
  EXPECT_EQ(told.at("converted").at("weights"), 160);
  EXPECT_EQ(told.at("converted").at("error").at("sqnr_db"), 30);
  EXPECT_EQ(told.at("kept"), (Json{{"tensors", 1}, {"weights", 64}}));
}

TEST(Manifest, WithoutErrorThereIsNoPlaceOfOne) {
  MeasuredError exact;
  exact.stats = compare(std::vector<float>{1, 2}, std::vector<float>{1, 2});
  const Plan made = plan();
  const Json told = Json::parse(written(made, [&](Manifest& manifest) {
    manifest.add(made.tensors[0], 0, {}, nullptr, &exact, parts_of(made.tensors[0]));
  }));
  const Json& error = told.at("tensors").at(0).at("error");
  EXPECT_EQ(error.at("max_abs"), 0);
  EXPECT_TRUE(error.at("max_abs_at").is_null());
  EXPECT_TRUE(error.at("worst_block").is_null());
}

TEST(Manifest, RecipeIsTold) {
  Plan made = plan();
  made.model.architecture.clear();
  made.recipe.to = "nf4:block-size=128,double-quant=no";
  made.recipe.on_overflow = OnOverflow::clamp;
  made.recipe.nonfinite = Nonfinite::quantize;
  made.recipe.error_report = ErrorReport::full;
  made.recipe.rules = {{"a\".*", "keep"}, {"b", "fp4:block-size=32"}};
  made.recipe.skips = {"\xff"};
  made.recipe.compute_dtype = DType::f16;
  made.recipe.keep_shards = true;
  const Json json = Json::parse(
      written(made, [](Manifest&) {}, {Message("a \"warning\"", {Remedy::Kind::reasons}), Message("\xc3")}));
  EXPECT_TRUE(json.at("architecture").is_null());
  const Json& told = json.at("recipe");
  EXPECT_EQ(told.at("to"), "nf4:block-size=128,double-quant=no");
  EXPECT_EQ(told.at("on_overflow"), "clamp");
  EXPECT_EQ(told.at("nonfinite"), "quantize");
  EXPECT_EQ(told.at("error_report"), "full");
  EXPECT_EQ(told.at("tensor"),
            Json::parse(R"([{"pattern":"a\".*","codec":"keep"},{"pattern":"b","codec":"fp4:block-size=32"}])"));
  EXPECT_EQ(told.at("skip"), Json{"\uFFFD"});
  EXPECT_EQ(told.at("compute_dtype"), "float16");
  EXPECT_EQ(told.at("keep_shards"), true);
  EXPECT_FALSE(told.contains("max_shard_size"));
  EXPECT_EQ(json.at("warnings"), (Json{"a \"warning\"", "\uFFFD"}));
}

TEST(Manifest, ATensorIsALine) {
  const Plan made = plan();
  const PlannedTensor norm = made.tensors[1];
  const std::string text = written(made, [&](Manifest& manifest) { add(manifest, norm); });
  EXPECT_THAT(
      text,
      HasSubstr("\n \"tensors\": [\n  "
                R"({"name":"model.norm.weight","codec":"keep","reason":)" +
                Json(norm.reason).dump() +
                R"(,"source":{"dtype":"BF16","shape":[64]},"transposed":false,"source_bytes":128,"stored_bytes":128,)"
                R"("findings":{"nan":0,"inf":0,"overflow":0,"underflow":0,"subnormal":0},"file":"shard0",)"
                R"("parts":[{"name":"model.norm.weight","dtype":"BF16","shape":[64],"bytes":128,)"
                R"("xxh3_128":["000000000000000000000000000000ff","00000000000000010000000000000002"]}]})"
                "\n ],\n"));
}

TEST(Manifest, HasEveryTensorAndPart) {
  const Plan made = plan();
  const Json json = Json::parse(written(made, [&](Manifest& manifest) {
    for (const PlannedTensor& tensor : made.tensors)
      manifest.add(tensor, tensor.source,
                   {.nan = 1, .inf = 2, .overflow = 3, .underflow = 4, .subnormal = 5, .first_nonfinite = 6}, nullptr,
                   nullptr, parts_of(tensor));
  }));
  const Json& tensors = json.at("tensors");
  ASSERT_EQ(tensors.size(), 2U);
  EXPECT_EQ(tensors[0].at("codec"), "nf4");
  EXPECT_EQ(tensors[0].at("parts").size(), 6U);
  EXPECT_EQ(tensors[0].at("parts")[0].at("shape"), (Json{64, 1}));
  EXPECT_EQ(tensors[1].at("file"), "shard1");
  EXPECT_EQ(tensors[0].at("findings"),
            Json::parse(R"({"nan":1,"inf":2,"overflow":3,"underflow":4,"subnormal":5,"first_nonfinite":6})"));
  EXPECT_FALSE(tensors[0].contains("error"));
}

TEST(Manifest, NamesAreQuoted) {
  const Plan made = plan();
  PlannedTensor tensor = made.tensors[1];
  tensor.info.name = "a\"\n\\\xff";
  const Json json = Json::parse(written(made, [&](Manifest& manifest) { add(manifest, tensor); }));
  EXPECT_EQ(json.at("tensors")[0].at("name"), "a\"\n\\\uFFFD");
  EXPECT_EQ(json.at("tensors")[0].at("parts")[0].at("name"), "a\"\n\\\uFFFD");
}

Json error_of(const EncodingError* basic, const MeasuredError* full) {
  const Plan made = plan();
  const PlannedTensor tensor = made.tensors[1];
  return Json::parse(
             written(made, [&](Manifest& manifest) { manifest.add(tensor, 0, {}, basic, full, parts_of(tensor)); }))
      .at("tensors")[0]
      .at("error");
}

TEST(Manifest, BasicErrorsAreThoseOfTheSums) {
  EncodingError error;
  error.sums = {.count = 4, .square = 1, .product = 3.5, .reference = 4, .test = 4};
  EXPECT_EQ(error_of(&error, nullptr).dump(),
            R"({"rmse":0.5,"rel_rmse":0.5,"sqnr_db":6.020599913279624,"cosine":0.875})");
  error.absmax.add(1.0f);
  error.absmax.add(3.0f);
  EXPECT_EQ(error_of(&error, nullptr).at("absmax").dump(), R"({"min":1,"mean":2,"max":3,"std":1})");
  // Exact: the ratio is infinite, which JSON has no number for.
  error.sums = {.count = 4, .square = 0, .product = 4, .reference = 4, .test = 4};
  EXPECT_TRUE(error_of(&error, nullptr).at("sqnr_db").is_null());
  EXPECT_EQ(error_of(&error, nullptr).at("rmse"), 0);
  error.sums = {};
  EXPECT_TRUE(error_of(&error, nullptr).at("rmse").is_null());
}

TEST(Manifest, FullErrorsAreWhatMeasuringSays) {
  MeasuredError full;
  full.stats = compare(std::vector<float>{3, -4, 0, 0}, std::vector<float>{3, -2, 1, 0});
  EncodingError basic;
  basic.absmax.add(2.0f);
  const Json told = error_of(&basic, &full);
  EXPECT_EQ(told.at("mae"), 0.75);
  EXPECT_EQ(told.at("max_abs"), 2);
  EXPECT_EQ(told.at("max_abs_at"), 1);
  EXPECT_EQ(told.at("mean_rel"), 0.25);
  EXPECT_EQ(told.at("worst_block").at("at"), 0);
  EXPECT_EQ(told.at("worst_block").at("absmax"), 4);
  EXPECT_EQ(told.at("absmax").at("mean"), 2);
  EXPECT_FALSE(error_of(nullptr, &full).contains("absmax"));
  full.stats = {};
  EXPECT_TRUE(error_of(nullptr, &full).at("max_abs").is_null());
}

// ---- rewind ----------------------------------------------------------------------------------------------------

// More of them than are kept before they are written.
void add_many(Manifest& manifest, const PlannedTensor& tensor) {
  for (int i = 0; i < 300; ++i) add(manifest, tensor);
}

class ManifestRewind : public testing::Test {
 protected:
  const Plan plan_ = plan();
  const PlannedTensor first_ = plan_.tensors[0], second_ = plan_.tensors[1];
};

TEST_F(ManifestRewind, LeavesNothing) {
  const std::string expected = written(plan_, [&](Manifest& manifest) {
    add(manifest, first_);
    add(manifest, second_);
  });
  for (const bool many : {false, true})
    EXPECT_EQ(written(plan_,
                      [&](Manifest& manifest) {
                        add(manifest, first_);
                        const Manifest::Mark mark = manifest.mark();
                        for (int again = 0; again < 2; ++again) {
                          many ? add_many(manifest, first_) : add(manifest, first_);
                          manifest.rewind(mark);
                        }
                        add(manifest, second_);
                      }),
              expected)
        << many;
}

// What follows is the first one again: without a comma.
TEST_F(ManifestRewind, ToTheBeginning) {
  const std::string expected = written(plan_, [&](Manifest& manifest) { add(manifest, second_); });
  for (const bool many : {false, true})
    EXPECT_EQ(written(plan_,
                      [&](Manifest& manifest) {
                        const Manifest::Mark mark = manifest.mark();
                        many ? add_many(manifest, first_) : add(manifest, first_);
                        manifest.rewind(mark);
                        add(manifest, second_);
                      }),
              expected)
        << many;
}

// A mark behind what is written already stays where it is.
TEST_F(ManifestRewind, ToAMarkAmongMany) {
  const std::string expected = written(plan_, [&](Manifest& manifest) {
    add_many(manifest, first_);
    add(manifest, second_);
  });
  EXPECT_EQ(written(plan_,
                    [&](Manifest& manifest) {
                      add_many(manifest, first_);
                      const Manifest::Mark mark = manifest.mark();
                      add(manifest, first_);
                      manifest.rewind(mark);
                      add_many(manifest, second_);
                      manifest.rewind(mark);
                      manifest.rewind(mark);  // nothing to drop
                      add(manifest, second_);
                    }),
            expected);
}

TEST_F(ManifestRewind, ToOneMarkAfterAnother) {
  const std::string expected = written(plan_, [&](Manifest& manifest) { add(manifest, first_); });
  EXPECT_EQ(written(plan_,
                    [&](Manifest& manifest) {
                      const Manifest::Mark none = manifest.mark();
                      add_many(manifest, second_);
                      const Manifest::Mark many = manifest.mark();
                      add_many(manifest, second_);
                      manifest.rewind(many);
                      add(manifest, second_);
                      manifest.rewind(none);
                      add(manifest, first_);
                    }),
            expected);
}

// A file by itself, which has no shards to name. Keeps the pieces as they come.
class OneFile final : public Writer {
 public:
  std::vector<std::string> pieces;
  void begin(std::size_t /*index*/, const PartList& /*parts*/) override {}
  void write(std::size_t /*part*/, std::uint64_t /*offset*/, std::span<const std::byte> /*bytes*/) override {}
  void end() override {}
  [[nodiscard]] std::string shard_name(std::size_t /*index*/) const override { return {}; }
  void write_manifest(std::uint64_t /*offset*/, std::string_view text) override { pieces.emplace_back(text); }
  std::unique_ptr<Scratch> make_scratch() override { return nullptr; }
  void complete(const Finish& /*finish*/) override {}
  void commit() override {}
};

// 100,000 tensors have 120 MB.
TEST(ManifestOfAFile, IsWrittenInPieces) {
  OneFile out;
  const Plan made = plan();
  Manifest manifest(made, out);
  for (int i = 0; i < 10; ++i) add_many(manifest, made.tensors[0]);
  manifest.end({made, {}, {}});
  EXPECT_GT(out.pieces.size(), 10U);
  for (const std::string& piece : out.pieces) EXPECT_LT(piece.size(), 80'000U);
}

TEST(ManifestOfAFile, NamesNoShard) {
  OneFile out;
  const Plan made = plan();
  Manifest manifest(made, out);
  add(manifest, made.tensors[1]);
  manifest.end({made, {}, {}});
  ASSERT_EQ(out.pieces.size(), 1U);
  EXPECT_THAT(out.pieces[0], HasSubstr("\"name\":\"model.norm.weight\""));
  EXPECT_THAT(out.pieces[0], Not(HasSubstr("\"file\"")));
}

}  // namespace
}  // namespace nibble::manifest_test
