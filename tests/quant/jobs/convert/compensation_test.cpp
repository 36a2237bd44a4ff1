// Conversions that compensate rounding errors: that the bytes are those of the quantizer, whatever else a conversion
// does, and what they refuse.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "core/xxh3.hpp"
#include "quant/jobs/convert/convert.hpp"
#include "quant/quantizers/compensation/compensated_quantizer.hpp"
#include "quant/schemes/scheme.hpp"
#include "quant/stream/conversion_memory.hpp"
#include "quant/stream/weighing.hpp"
#include "tests/quant/codecs/codec_support.hpp"
#include "tests/quant/quantizers/compensation/reference.hpp"
#include "tests/support/calibration.hpp"
#include "tests/support/conversion.hpp"
#include "tests/support/remedies.hpp"

namespace nibble::compensation_conversion_test {
namespace {

using test::error_of;
using testing::Contains;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;

using Parts = std::map<std::string, std::vector<std::byte>>;

struct Result {
  Report report;
  Parts parts;
  std::string manifest;
};

class CompensatedConversion : public testing::Test {
 protected:
  CompensatedConversion() {
    in.add_normal("a.q.weight", DType::f32, {70, 128});
    in.add_normal("a.k.weight", DType::f32, {24, 128});
    in.add_normal("b.o.weight", DType::bf16, {32, 192});
    add_input("a.q", 128, 1);
    add_input("b.o", 192, 2);
    maker.manifest["weights"]["a.k.weight"] = {"a.q"};
  }
  void add_input(const std::string& name, std::size_t k, unsigned seed) {
    const test::Numbers moment = test::second_moment(k, k, seed);
    add_input(name, {moment.begin(), moment.end()}, k);
  }
  void add_input(const std::string& name, const std::vector<float>& moment, std::size_t k) {
    std::vector<float> diagonal(k);
    for (std::size_t i = 0; i < k; ++i) diagonal[i] = moment[i * k + i];
    maker.add(name, diagonal, moment);
    moments[name] = moment;
  }
  [[nodiscard]] Recipe recipe(const CodecSpec& to, bool compensate = true) const {
    Recipe recipe = has_experts ? test::with_experts(to) : test::recipe(to);
    recipe.compensate = compensate;
    if (compensate) recipe.calibration = maker.write(dir);
    return recipe;
  }
  [[nodiscard]] Result run(const Recipe& recipe, const Resources& resources = {2}) const {
    test::MemoryWriter out;
    Progress progress;
    Report report = convert(in, make_plan(in, recipe), out, resources, progress);
    EXPECT_TRUE(out.is_committed());
    return {std::move(report), out.parts(), out.manifest()};
  }
  [[nodiscard]] std::string refusal(const Recipe& recipe, Errc code = Errc::bad_input) const {
    return error_of([&] { (void)run(recipe); }, code);
  }

  [[nodiscard]] std::vector<std::string> warnings(const CodecSpec& to) const {
    return Weighing(in, make_plan(in, recipe(to)), 1'000'000'000).warnings();
  }

  // What the quantizer makes of a tensor.
  [[nodiscard]] test::Encoded expected(const CodecSpec& to, const PlannedTensor& tensor, const std::string& input,
                                       std::span<const std::byte> weights) const {
    const auto codec = make_codec(to);
    test::Numbers moment(moments.at(input).begin(), moments.at(input).end());
    const InputFactor factor(moment, tensor.info.shape[1], {.blocksize = compensated_columns(*codec).value()});
    const auto quantizer = make_compensated_quantizer(*codec, {}, &factor);
    return test::encode(*codec, tensor.info, weights, {.by = quantizer.get()});
  }
  void expect_compensated(const CodecSpec& to, const Result& result, const std::string& name, const std::string& input,
                          std::span<const std::byte> weights) const {
    for (const PlannedTensor& tensor : result.report.plan.tensors) {
      if (tensor.info.name != name) continue;
      const test::Encoded codes = expected(to, tensor, input, weights);
      for (const auto& [part, plane] : stored_parts(*make_codec(to), tensor.info))
        if (plane) {
          EXPECT_EQ(result.parts.at(part.name), codes.planes.at(*plane)) << to.text() << ", " << part.name;
        }
      return;
    }
    ADD_FAILURE() << name;
  }
  void expect_plain(const CodecSpec& to, const Result& result, const std::string& name) const {
    const Result plain = run(recipe(to, false));
    std::size_t found = 0;
    for (const auto& [part, bytes] : result.parts) {
      if (!part.starts_with(name)) continue;
      ++found;
      EXPECT_EQ(bytes, plain.parts.at(part)) << part;
    }
    EXPECT_GT(found, 0U) << name;
  }

  test::TempDir dir;
  test::StatisticsMaker maker;
  test::MemoryReader in;
  bool has_experts = false;
  std::map<std::string, std::vector<float>> moments;
};

TEST_F(CompensatedConversion, BytesAreThoseOfTheQuantizer) {
  for (const char* const to : {"nf4", "nf4:absmax=search", "nf4:block-size=32,double-quant=no", "fp4:absmax=search",
                               "fp4:absmax=search-positive,double-quant=no", "int8", "int8:absmax=search"}) {
    const Result result = run(recipe(to));
    expect_compensated(to, result, "a.q.weight", "a.q", in.bytes(0));
    expect_compensated(to, result, "a.k.weight", "a.q", in.bytes(1));
    expect_compensated(to, result, "b.o.weight", "b.o", in.bytes(2));
    EXPECT_THAT(warnings(to), IsEmpty());
  }
}

TEST_F(CompensatedConversion, BytesDoNotDependOnThreadsOrMemory) {
  in.add_normal("a.v.weight", DType::f16, {515, 128});
  maker.manifest["weights"]["a.v.weight"] = {"a.q"};
  for (const char* const to : {"nf4", "nf4:absmax=search", "int8"}) {
    const Recipe chosen = recipe(to);
    const Result first = run(chosen, {1});
    const Remedy least = test::remedy_of([&] { (void)run(chosen, {2, 15'000'000}); });
    ASSERT_EQ(least.kind, Remedy::Kind::max_memory);
    for (const Resources& other : {Resources{2}, Resources{7}, Resources{2, least.bytes}}) {
      const Result result = run(chosen, other);
      EXPECT_EQ(result.parts, first.parts) << to;
      EXPECT_EQ(result.manifest, first.manifest) << to;
    }
    EXPECT_THAT(error_of(
                    [&] {
                      (void)run(chosen, {2, least.bytes - 1});
                    },
                    Errc::no_space),
                HasSubstr("this conversion needs"));
  }
}

TEST_F(CompensatedConversion, IsInTheManifest) {
  const Result result = run(recipe("nf4"));
  const auto manifest = nlohmann::json::parse(result.manifest);
  EXPECT_EQ(manifest.at("recipe").at("compensate"), true);
  EXPECT_EQ(manifest.at("calibration").at("tensors"), 3);
  for (const auto& tensor : manifest.at("tensors")) {
    const auto& moment = moments.at(tensor.at("name") == "b.o.weight" ? "b.o" : "a.q");
    EXPECT_EQ(tensor.at("compensation").at("damping"), 0.01);
    EXPECT_EQ(tensor.at("compensation").at("second_moment_xxh3_128"), xxh3(std::as_bytes(std::span(moment))).hex());
  }
  const auto without = nlohmann::json::parse(run(recipe("nf4", false)).manifest);
  EXPECT_FALSE(without.at("recipe").contains("compensate"));
  EXPECT_FALSE(without.at("tensors")[0].contains("compensation"));
}

// With the errors of the quantizer, and what a measurement encodes is what a conversion writes.
TEST_F(CompensatedConversion, IsMeasured) {
  for (const char* const to : {"nf4", "nf4:absmax=search", "int8"}) {
    const Recipe chosen = recipe(to);
    const test::Converted made = test::converted(in, chosen);
    const std::vector<Candidate> candidates{test::checkpoint(made.reader), test::plan(in, chosen),
                                            test::plan(in, recipe(to, false))};
    Progress progress;
    const Measurement found = measure(in, candidates, {}, progress);
    const Result basic = run(chosen);
    double square = 0;
    for (std::size_t t = 0; t < found.tensors.size(); ++t) {
      const auto square_of = [&](std::size_t c) { return found.candidates[c].tensors[t]->stats.square; };
      EXPECT_EQ(square_of(0), square_of(1)) << to;
      EXPECT_GT(square_of(0), square_of(2)) << to;  // weights are further away
      square += square_of(0);
    }
    EXPECT_NEAR(basic.report.totals.quantized.error.square, square, 1e-5 * square);
    Recipe other = chosen;  // another second moment for the same input
    test::StatisticsMaker identity;
    for (const auto& [name, k] : {std::pair("a.q", 128), {"b.o", 192}}) {
      std::vector<float> moment(k * k);
      for (int i = 0; i < k; ++i) moment[i * k + i] = 1;
      identity.add(name, std::vector<float>(k, 1.0f), moment);
    }
    identity.manifest["weights"] = maker.manifest["weights"];
    other.calibration = identity.write(dir, "identity");
    const std::vector<Candidate> two{test::plan(in, chosen), test::plan(in, other)};
    const Measurement both = measure(in, two, {}, progress);
    for (std::size_t t = 0; t < found.tensors.size(); ++t) {
      EXPECT_EQ(both.candidates[0].tensors[t]->stats.square, found.candidates[1].tensors[t]->stats.square);
      EXPECT_LT(both.candidates[1].tensors[t]->stats.square, found.candidates[1].tensors[t]->stats.square);
    }
    Recipe full = chosen;
    full.error_report = ErrorReport::full;
    EXPECT_EQ(run(full).parts, basic.parts);
  }
}

TEST_F(CompensatedConversion, LeavesOutWhatIsNotPossible) {
  in.add_normal("c.x.weight", DType::f32, {8, 96});
  add_input("c.x", 96, 3);
  in.add_normal("d.y.weight", DType::f32, {8, 128});
  for (const char* const to : {"nf4", "nf4:absmax=search"}) {
    const Result result = run(recipe(to));
    expect_compensated(to, result, "a.q.weight", "a.q", in.bytes(0));
    expect_plain(to, result, "d.y.weight");
    EXPECT_THAT(warnings(to),
                ElementsAre("1 of 5 tensors are not compensated, because they have no statistics: 'd.y.weight'",
                            "1 of 5 tensors are not compensated, because their rows are not whole blocks: "
                            "'c.x.weight'"));
    const auto manifest = nlohmann::json::parse(result.manifest);
    for (const auto& tensor : manifest.at("tensors"))
      EXPECT_EQ(tensor.contains("compensation"), tensor.at("name") < "c") << tensor.at("name");
  }
  expect_plain("nf4", run(recipe("nf4")), "c.x.weight");
  // Rows of int8 may have any length, and a search weighs the columns of what is not compensated.
  expect_compensated("int8", run(recipe("int8")), "c.x.weight", "c.x", in.bytes(3));
  Recipe weighted = recipe("nf4:absmax=search");
  const Result compensated = run(weighted);
  weighted.compensate = false;
  EXPECT_EQ(compensated.parts.at("c.x.weight"), run(weighted).parts.at("c.x.weight"));
  weighted.compensate = true;
  const Plan plan = make_plan(in, weighted);
  const Weighing weighing(in, plan, 1'000'000'000);
  for (const PlannedTensor& tensor : plan.tensors) {
    EXPECT_EQ(weighing.columns_of(tensor).empty(), tensor.info.name != "c.x.weight");
    EXPECT_EQ(weighing.factor_of(tensor).has_value(), tensor.info.name < "c");
  }
}

TEST_F(CompensatedConversion, HasAnInputForEachExpert) {
  in = {};
  has_experts = true;
  in.set_architecture("Qwen3MoeForCausalLM", false);
  const std::string experts = "model.layers.0.mlp.experts.";
  in.add_normal(experts + "gate_up_proj", DType::bf16, {3, 48, 128});
  in.add_normal(experts + "down_proj", DType::bf16, {3, 128, 64});
  maker = {};
  add_input("e.0", 128, 4);
  add_input("e.1", 128, 5);
  maker.manifest["weights"] = {{experts + "gate_up_proj", {"e.0", "e.1", nullptr}},
                               {experts + "down_proj", {"e.0", "e.1", nullptr}}};
  const Result result = run(recipe("nf4"));
  const std::size_t size = 2 * 48 * 128;
  const auto name = [&](int expert) { return experts + std::to_string(expert) + ".gate_up_proj.weight"; };
  const auto weights = [&](std::size_t expert) { return std::span(in.bytes(0)).subspan(expert * size, size); };
  expect_compensated("nf4", result, name(0), "e.0", weights(0));
  expect_compensated("nf4", result, name(1), "e.1", weights(1));
  expect_plain("nf4", result, name(2));
  // The rows of the second are the inputs.
  expect_plain("nf4", result, experts + "0.down_proj.weight");
  EXPECT_THAT(warnings("nf4"),
              ElementsAre(HasSubstr("2 of 6 tensors are not compensated, because they have no statistics"),
                          EndsWith("2 of 6 tensors are not compensated, because all weights of a row have the same "
                                   "input: '" +
                                   experts + "0.down_proj.weight', ...")));
}

// Conv1D stores [in, out]: the columns of the matrix that is encoded are its inputs.
TEST_F(CompensatedConversion, CompensatesTransposedTensors) {
  constexpr std::size_t k = 128, rows = 48;
  in = {};
  in.set_architecture("GPT2LMHeadModel", false);
  const std::string name = "transformer.h.0.mlp.c_fc.weight";
  in.add_normal(name, DType::f32, {k, rows});
  maker = {};
  add_input("fc", k, 7);
  maker.manifest["weights"] = {{name, {"fc"}}};
  std::vector<std::byte> transposed(in.bytes(0).size());
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t c = 0; c < k; ++c)
      std::memcpy(transposed.data() + 4 * (r * k + c), in.bytes(0).data() + 4 * (c * rows + r), 4);
  for (const char* const to : {"nf4", "int8"}) expect_compensated(to, run(recipe(to)), name, "fc", transposed);
}

TEST_F(CompensatedConversion, NeedsSecondMoments) {
  Recipe without = recipe("nf4");
  without.calibration.clear();
  EXPECT_EQ(refusal(without, Errc::usage), "compensation needs statistics of the inputs, with their second moments");
  maker.manifest["second_moments"] = false;
  EXPECT_THAT(refusal(recipe("nf4")), EndsWith("calibration.json: has no second moments, which compensation needs: "
                                               "nibble.calibrate writes them when told to"));
}

TEST_F(CompensatedConversion, IsRefusedWhereItHasNoEffect) {
  EXPECT_EQ(refusal(recipe("fp8"), Errc::usage),
            "compensation has no effect: no tensor is stored in a codec that has it");
  EXPECT_EQ(refusal(recipe("nf4:block-size=1024"), Errc::usage),
            "compensation has no effect: 3 of 3 tensors are not compensated, because their rows are not whole blocks: "
            "'a.q.weight', ...");
  maker.manifest["weights"] = {{"other.weight", {"a.q"}}};
  EXPECT_THAT(refusal(recipe("nf4")), EndsWith("stats/calibration.json: lists no tensor that could be compensated; "
                                               "'a.q.weight' is the first: is it of another model?"));
}

TEST_F(CompensatedConversion, TakesMemory) {
  const Plan plan = make_plan(in, recipe("nf4"));
  const CompensationMemory memory = Weighing(in, plan, 1'000'000'000).memory().compensation;
  EXPECT_GE(memory.making_bytes, InputFactor::making_bytes(192) + 192 * 192 * sizeof(float));  // it is read at once
  EXPECT_EQ(memory.factor_bytes, InputFactor::memory_bytes(192));
  EXPECT_EQ(memory.thread_bytes, 512U * 192 + 1104 * 64);
  const auto least = [&](const Recipe& chosen) {
    const std::vector<Candidate> candidates{test::plan(in, chosen)};
    return test::remedy_of([&] {
             Progress progress;
             (void)measure(in, candidates, {.resources = {1, 16'000'000}}, progress);
           })
        .bytes;
  };
  EXPECT_GE(least(recipe("nf4")), least(recipe("nf4", false)) + memory.bytes(1, 4 * (1 << 17)));
}

// Those of tensors that are searched and not compensated, because their rows are not whole blocks.
TEST_F(CompensatedConversion, ReadsTheMeanSquaresThatItUsesBeforeAnythingIsWritten) {
  in.add_normal("c.x.weight", DType::f32, {8, 64});
  maker.add("c.x", std::vector<float>(64, -1.0f), std::vector<float>(64 * 64));
  EXPECT_NO_THROW((void)warnings("nf4:absmax=search"));
  in.add_normal("d.x.weight", DType::f32, {8, 65});
  maker.add("d.x", std::vector<float>(65, -1.0f), std::vector<float>(65 * 65));
  EXPECT_NO_THROW((void)warnings("nf4"));
  EXPECT_THAT(error_of([&] { (void)warnings("nf4:absmax=search"); }),
              HasSubstr("tensor 'd.x.mean_square': value 0 is -1"));
}

TEST_F(CompensatedConversion, NamesASecondMomentThatCannotBeUsed) {
  std::vector<float> moment(128 * 128, 1.0f);  // -1 elsewhere on the diagonal's sides: not of squares
  for (std::size_t i = 0; i < 128; ++i) moment[i * 128 + i] = 1e-3f;
  in.add_normal("c.x.weight", DType::f32, {8, 128});
  add_input("c.x", moment, 128);
  EXPECT_THAT(refusal(recipe("nf4")),
              EndsWith("stats/layer-00000.safetensors: tensor 'c.x.second_moment': the second moment of the inputs is "
                       "not positive definite, even with the mean of its diagonal added to the diagonal"));
}

// Half of a matrix says nothing of how its inputs depend on each other, or something else than the other half.
TEST_F(CompensatedConversion, RefusesASecondMomentThatIsNotSymmetric) {
  constexpr std::size_t k = 128;
  in.add_normal("c.x.weight", DType::f32, {8, k});
  std::vector<float> moment(k * k);
  for (std::size_t i = 0; i < k; ++i) moment[i * k + i] = 4;
  const auto others = maker;
  const auto changed_by = [&](std::size_t row, std::size_t column, float difference) {
    maker = others;
    auto changed = moment;
    changed[row * k + column] += difference;
    add_input("c.x", changed, k);
    return recipe("nf4");
  };
  (void)run(changed_by(100, 3, 0.0039f));  // 0.001 of the inputs' mean squares: rounding
  for (const auto& [row, column] : {std::pair(100, 3), {97, 96}, {127, 0}, {1, 0}})
    EXPECT_THAT(refusal(changed_by(row, column, 0.0041f)),
                EndsWith(fmt::format("tensor 'c.x.second_moment': [{0}, {1}] is 0.004100000020116568, and [{1}, {0}] "
                                     "is 0: not symmetric",
                                     row, column)));
  EXPECT_THAT(refusal(changed_by(3, 100, 0.0041f)), EndsWith("is 0.004100000020116568: not symmetric"));
}

TEST_F(CompensatedConversion, NamesATensorWithCorrectionsBeyondFp32) {
  in.add_normal("c.x.weight", DType::f32, {8, 128});
  add_input("c.x", 128, 6);
  for (std::size_t at = 0; at < in.bytes(3).size(); at += sizeof(float)) {
    const float huge = at % 8 == 0 ? 3e38f : -2e38f;
    std::memcpy(in.bytes(3).data() + at, &huge, sizeof huge);
  }
  Recipe chosen = recipe("nf4");
  for (const ErrorReport report : {ErrorReport::basic, ErrorReport::full}) {  // a full one measures first
    chosen.error_report = report;
    EXPECT_THAT(refusal(chosen),
                EndsWith("tensor 'c.x.weight': the corrections of row 0 are beyond the range of fp32"));
  }
}

class Recorded final : public Progress {
 public:
  void advance(std::string_view tensor, std::uint64_t done, std::uint64_t total) override {
    EXPECT_GE(done, last_done);
    EXPECT_LE(done, total);
    last_done = done, last_total = total;
    ++calls[std::string(tensor)];
    dones[std::string(tensor)].push_back(done);
  }
  [[nodiscard]] bool cancelled() const override { return stops_at > 0 && last_done >= stops_at; }

  std::uint64_t last_done = 0, last_total = 0, stops_at = 0;
  std::map<std::string, std::size_t> calls;
  std::map<std::string, std::vector<std::uint64_t>> dones;
};

// More damping than usual is recorded.
TEST_F(CompensatedConversion, RecordsTheDamping) {
  constexpr std::size_t k = 192;
  std::vector<float> moment(k * k);
  for (std::size_t i = 0; i < k; ++i) moment[i * k + i] = 1;
  moment[1] = moment[k] = 1.05f;  // an eigenvalue of -0.05
  in.add_normal("c.x.weight", DType::f32, {8, k});
  add_input("c.x", moment, k);
  test::MemoryWriter out;
  Recorded progress;  // never goes back
  (void)convert(in, make_plan(in, recipe("nf4")), out, {1}, progress);
  const auto manifest = nlohmann::json::parse(out.manifest());
  for (const auto& tensor : manifest.at("tensors"))
    EXPECT_EQ(tensor.at("compensation").at("damping"), tensor.at("name") == "c.x.weight" ? 0.1 : 0.01);
}

// A tensor has batches for all threads.
TEST_F(CompensatedConversion, UsesAllThreads) {
  in.add_normal("b.v.weight", DType::f16, {515, 192});
  maker.manifest["weights"]["b.v.weight"] = {"b.o"};
  for (const char* const to : {"nf4:double-quant=no", "int8"}) {
    test::MemoryWriter out;
    Recorded progress;
    (void)convert(in, make_plan(in, recipe(to)), out, {4}, progress);
    EXPECT_GE(progress.calls.at("b.v.weight"), CodecSpec(to) == "int8" ? 2U : 4U) << to;  // of 336 rows or more
  }
}

// The second moments count as bytes, a factor is made once for tensors that follow each other, and what is done grows
// while it is.
TEST_F(CompensatedConversion, ProgressCountsSecondMoments) {
  in.add_normal("n.norm.weight", DType::f32, {128});
  for (const char* const to : {"nf4", "int8"}) {
    test::MemoryWriter out;
    Recorded progress;
    (void)convert(in, make_plan(in, recipe(to)), out, {1}, progress);
    std::uint64_t bytes = 4 * (128 * 128 + 192 * 192);
    for (std::size_t t = 0; t < in.tensors().size(); ++t) bytes += in.tensors().bytes(t);
    EXPECT_EQ(progress.last_total, bytes);
    EXPECT_EQ(progress.last_done, bytes);
    EXPECT_EQ(progress.calls.at("a.k.weight"), 1U) << to;
    // Once when the moment is read, after each of 2 x 64 columns of the factor, and for 64 and 6 rows.
    EXPECT_EQ(progress.calls.at("a.q.weight"), 1U + 2 + 2) << to;
    const auto& dones = progress.dones.at("b.o.weight");
    EXPECT_GT(dones[2] - dones[0], 0U);
    EXPECT_LT(dones[2] - dones[0], 4U * 192 * 192);
  }
}

TEST_F(CompensatedConversion, StopsWhileAFactorIsMade) {
  test::MemoryWriter out;
  Recorded progress;
  progress.stops_at = 1;
  EXPECT_THAT(error_of([&] { (void)convert(in, make_plan(in, recipe("nf4")), out, {1}, progress); }, Errc::interrupted),
              HasSubstr("interrupted"));
  EXPECT_LT(progress.last_done, 4U * 128 * 128);
  EXPECT_FALSE(out.is_committed());
}

// The shard begins anew without the tensor, and with another factor than that of its first tensor in memory.
TEST_F(CompensatedConversion, KeepsATensorThatIsNotFinite) {
  const Result before = run(recipe("nf4"));
  const float nan = NAN;
  const std::vector<std::byte> whole = in.bytes(1);
  std::memcpy(in.bytes(1).data() + 512, &nan, sizeof nan);
  test::MemoryWriter out;
  class Last final : public Progress {
   public:
    void advance(std::string_view, std::uint64_t done, std::uint64_t total) override {
      EXPECT_LE(done, total);
      is_all = done == total;
    }
    bool is_all = false;
  } progress;
  const Report report = convert(in, make_plan(in, recipe("nf4")), out, {1}, progress);
  EXPECT_THAT(test::texts(report.warnings), Contains(HasSubstr("'a.k.weight' is kept")));
  EXPECT_EQ(out.parts().at("a.k.weight"), in.bytes(1));
  for (const char* const name : {"a.q.weight", "b.o.weight"}) EXPECT_EQ(out.parts().at(name), before.parts.at(name));
  const auto manifest = nlohmann::json::parse(out.manifest());
  EXPECT_FALSE(manifest.at("tensors")[1].contains("compensation"));

  // The tensor that is kept is the one for which the factor was made.
  in.bytes(1) = whole;
  std::memcpy(in.bytes(0).data() + 512, &nan, sizeof nan);
  test::MemoryWriter other;
  (void)convert(in, make_plan(in, recipe("nf4")), other, {1}, progress);
  EXPECT_TRUE(progress.is_all);
  EXPECT_EQ(other.parts().at("a.k.weight"), before.parts.at("a.k.weight"));
}

// The second moments that are used count once, though the shard begins anew. Tensors in int8 are not scanned, so they
// are one pipeline where they share a factor.
TEST_F(CompensatedConversion, ProgressEndsAtTheTotalAfterATensorIsKept) {
  class Last final : public Progress {
   public:
    void advance(std::string_view, std::uint64_t done, std::uint64_t total) override {
      EXPECT_LE(done, total);
      last_done = done, last_total = total;
    }
    std::uint64_t last_done = 0, last_total = 0;
  };
  for (const std::size_t kept : {1U, 2U, 3U}) {  // the first with an input, one that shares it, the only one of another
    in = {};
    in.add_normal("a.a.weight", DType::f32, {8, 128});  // without statistics
    in.add_normal("a.k.weight", DType::f32, {24, 128});
    in.add_normal("a.q.weight", DType::f32, {70, 128});
    if (kept == 3) in.add_normal("b.o.weight", DType::f32, {32, 192});
    const float nan = NAN;
    std::memcpy(in.bytes(kept).data(), &nan, sizeof nan);
    test::MemoryWriter out;
    Last progress;
    const Report report = convert(in, make_plan(in, recipe("int8")), out, {1}, progress);
    EXPECT_THAT(test::texts(report.warnings), Contains(HasSubstr("is kept")));
    std::uint64_t bytes = 4 * 128 * 128;
    for (std::size_t t = 0; t < in.tensors().size(); ++t) bytes += in.tensors().bytes(t);
    EXPECT_EQ(progress.last_done, bytes) << kept;
    EXPECT_EQ(progress.last_total, bytes) << kept;
  }
}

}  // namespace
}  // namespace nibble::compensation_conversion_test
